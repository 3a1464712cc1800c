"""Numba's pipeline for generated code: without the passes that find nothing to do in it, and asking only once what
it asks for each statement.

The passes look at each statement many times: in a product with 24 vectors in registers they take a sixth of the
time of its compilation, and as much goes into the types of sums and calls that have all been seen before.  See
*Customizing the Compiler* in Numba's reference manual.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Final

from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import (
    InlineOverloads,
    NativeLowering,
    NopythonRewrites,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    InlineClosureLikes,
    InlineInlinables,
    LiteralUnroll,
    ReconstructSSA,
    WithLifting,
)

from pyschedule.codegen.simd.types import VectorType

#: Passes for closures and comprehensions, `with`, functions to inline, `literal_unroll`, and expressions of whole
#: arrays; and single assignment, which Numba has for variables of several types: here each has one.
_NOTHING_TO_DO: Final = (
    InlineClosureLikes,
    InlineInlinables,
    InlineOverloads,
    LiteralUnroll,
    NopythonRewrites,
    PreLowerStripPhis,
    ReconstructSSA,
    WithLifting,
)


class Part(JITCodeLibrary):  # type: ignore[misc]
    """The code of a function that is called from one program only, and becomes machine code there, with it.

    A library of Numba's is optimised and translated on its own, and optimised again in each that it is linked into.
    """

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True


class _Remembering:
    """A typing context that looks up what a function makes of given types once."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._found: dict[tuple[Any, tuple[Any, ...]], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: Any, keywords: Mapping[str, Any]) -> Any:
        if keywords:
            return self._context.resolve_function_type(function, args, keywords)
        key = function, tuple(args)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._context.resolve_function_type(function, args, keywords)
        return found


@register_pass(mutates_CFG=True, analysis_only=False)
class _Inference(NopythonTypeInference):  # type: ignore[misc]
    _name = "pyschedule_type_inference"

    def run_pass(self, state: Any) -> Any:
        context, state.typingctx = state.typingctx, _Remembering(state.typingctx)
        try:
            return super().run_pass(state)
        finally:
            state.typingctx = context


#: Types whose values nothing counts references in.
_PLAIN: Final = (types.Number, types.Boolean, VectorType)


class _Lower(Lower):  # type: ignore[misc]
    """Does nothing where a number ends, and takes the implementation of an operator for its types without looking
    for one for constants before: only powers have some, and each look in vain goes through all that extends Numba.
    """

    def delvar(self, name: str) -> None:
        in_time = name in self._blk_local_varmap or name not in self._singly_assigned_vars
        if not (in_time and isinstance(self.typeof(name), _PLAIN)):
            super().delvar(name)

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        if op is operator.pow:
            return super().lower_binop(resty, expr, op)
        signature = self.fndesc.calltypes[expr]
        function = self.context.typing_context.resolve_value_type(op)
        operands = [
            self.context.cast(self.builder, self.loadvar(operand.name), self.typeof(operand.name), wanted)
            for operand, wanted in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        result = self.context.get_function(function, signature)(self.builder, operands)
        return self.context.cast(self.builder, result, signature.return_type, resty)


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):  # type: ignore[misc]
    _name = "pyschedule_lowering"

    @property
    def lowering_class(self) -> Any:
        return _Lower

    def run_pass(self, state: Any) -> Any:
        if isinstance(state.library, Part):  # nothing calls it but the program that it is linked into
            state.flags = state.flags.copy()
            state.flags.no_compile = state.flags.no_cpython_wrapper = state.flags.no_cfunc_wrapper = True
        return super().run_pass(state)


_IN_THEIR_PLACE: Final = {NopythonTypeInference: _Inference, NativeLowering: _Lowering}


class FewerPasses(CompilerBase):  # type: ignore[misc]
    """The compiler of generated functions (`pipeline_class=` of `njit`)."""

    def define_pipelines(self) -> list[Any]:
        default = DefaultPassBuilder.define_nopython_pipeline(self.state)
        fewer = PassManager("pyschedule")
        for kind, purpose in default.passes:
            if kind not in _NOTHING_TO_DO:
                fewer.add_pass(_IN_THEIR_PLACE.get(kind, kind), purpose)
        fewer.finalize()
        return [fewer]
