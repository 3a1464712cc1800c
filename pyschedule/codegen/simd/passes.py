"""Numba's pipeline without the passes that find nothing to do in generated code.

They look at each statement many times: in a product with 24 vectors in registers they take a sixth of the time of
its compilation.  See *Customizing the Compiler* in Numba's reference manual.
"""

from __future__ import annotations

from typing import Any

from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager
from numba.core.typed_passes import InlineOverloads, NopythonRewrites, PreLowerStripPhis
from numba.core.untyped_passes import (
    InlineClosureLikes,
    InlineInlinables,
    LiteralUnroll,
    ReconstructSSA,
    WithLifting,
)

#: Passes for closures and comprehensions, `with`, functions to inline, `literal_unroll`, and expressions of whole
#: arrays; and single assignment, which Numba has for variables of several types: here each has one.
_NOTHING_TO_DO = (
    InlineClosureLikes,
    InlineInlinables,
    InlineOverloads,
    LiteralUnroll,
    NopythonRewrites,
    PreLowerStripPhis,
    ReconstructSSA,
    WithLifting,
)


class FewerPasses(CompilerBase):  # type: ignore[misc]
    """The compiler of generated functions (`pipeline_class=` of `njit`)."""

    def define_pipelines(self) -> list[Any]:
        default = DefaultPassBuilder.define_nopython_pipeline(self.state)
        fewer = PassManager("pyschedule")
        for kind, purpose in default.passes:
            if kind not in _NOTHING_TO_DO:
                fewer.add_pass(kind, purpose)
        fewer.finalize()
        return [fewer]
