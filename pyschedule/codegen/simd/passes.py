"""Numba's pipeline for generated code: without the passes that find nothing to do in it, and asking only once what
it asks for each statement.

The passes look at each statement many times: in a product with 24 vectors in registers they take a sixth of the
time of its compilation, and as much goes into the types of sums and calls that have all been seen before.  See
*Customizing the Compiler* in Numba's reference manual.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.rewrites import rewrite_registry
from numba.core.typed_passes import (
    AnnotateTypes,
    InlineOverloads,
    IRLegalization,
    NativeLowering,
    NopythonRewrites,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    GenericRewrites,
    InlineClosureLikes,
    InlineInlinables,
    IRProcessing,
    LiteralUnroll,
    ReconstructSSA,
    WithLifting,
)

from pyschedule.codegen.simd.lowering import FewerInstructions

#: Passes for closures and comprehensions, `with`, functions to inline, `literal_unroll`, and expressions of whole
#: arrays; single assignment, which Numba has for variables of several types: here each has one; and the lives of
#: variables, for generators.
_NOTHING_TO_DO: Final = (
    InlineClosureLikes,
    InlineInlinables,
    InlineOverloads,
    IRProcessing,
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


@register_pass(mutates_CFG=True, analysis_only=False)
class _Rewrites(GenericRewrites):  # type: ignore[misc]
    """Without a look for the ends of variables' lives after it."""

    _name = "pyschedule_rewrites"

    def run_pass(self, state: Any) -> bool:
        blocks = state.func_ir.blocks
        for kind in rewrite_registry.rewrites["before-inference"]:
            rewrite = kind(state)
            for key in list(blocks):
                while rewrite.match(state.func_ir, blocks[key], state.typemap, state.calltypes):
                    blocks[key] = rewrite.apply()
        return True


@register_pass(mutates_CFG=False, analysis_only=True)
class _Legalization(IRLegalization):  # type: ignore[misc]
    """Nothing: the front of the pipeline made neither phis nor ends of variables' lives (`FewerInstructions` needs
    none)."""

    _name = "pyschedule_legalization"

    def run_pass(self, state: Any) -> bool:
        return False


@register_pass(mutates_CFG=False, analysis_only=True)
class _Annotation(AnnotateTypes):  # type: ignore[misc]
    """A note of what is compiled, instead of each of its statements with its types, which the cache would keep."""

    _name = "pyschedule_annotation"

    def run_pass(self, state: Any) -> bool:
        state.type_annotation = f"generated code: {state.func_id.func_qualname}"
        return False


@register_pass(mutates_CFG=True, analysis_only=False)
class _Lowering(NativeLowering):  # type: ignore[misc]
    _name = "pyschedule_lowering"

    @property
    def lowering_class(self) -> Any:
        return FewerInstructions

    def run_pass(self, state: Any) -> Any:
        state.flags = state.flags.copy()
        state.flags.no_cfunc_wrapper = True  # nothing calls generated code as a C function
        if isinstance(state.library, Part):  # nothing calls it but the program that it is linked into
            state.flags.no_compile = state.flags.no_cpython_wrapper = True
        return super().run_pass(state)


_IN_THEIR_PLACE: Final = {
    AnnotateTypes: _Annotation,
    GenericRewrites: _Rewrites,
    IRLegalization: _Legalization,
    NativeLowering: _Lowering,
    NopythonTypeInference: _Inference,
}


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
