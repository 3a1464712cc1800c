"""Loops: hints to LLVM, each the last statement of a loop's body.

Loop hints are metadata of the branch back to the head of the loop, which Numba writes after the body.  The
hint leaves a pseudo-instruction that prints nothing; when the module is printed, it finds the branch that ends
its block and puts the metadata there.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from llvmlite.ir.values import MDValue
from numba.core import types

from pyschedule.codegen.simd.types import INT32, intrinsic, literal


class _LoopNode(MDValue):  # type: ignore[misc]
    """A loop's own metadata node: distinct, and its own first operand."""

    def __init__(self, module: Any, hints: Any) -> None:
        super().__init__(module, hints, name=str(len(module.metadata)))

    def descr(self, buffer: Any) -> None:
        own = self.get_reference()
        buffer += (f"distinct !{{ {', '.join([own, *(item.get_reference() for item in self.operands)])} }}", "\n")

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class _LoopHint(ir.Instruction):  # type: ignore[misc]
    def __init__(self, block: Any, node: Any) -> None:
        super().__init__(block, ir.VoidType(), "loop.hint", [])
        self.node = node

    def descr(self, buffer: Any) -> None:
        back_edge = self.parent.terminator
        if back_edge is not None and back_edge.opname == "br":
            back_edge.set_metadata("llvm.loop", self.node)
        buffer.append("; loop hint\n")


def _place(builder: Any, hints: list[list[Any]]) -> None:
    module = builder.module
    node = _LoopNode(module, [module.add_metadata(hint) for hint in hints])
    builder._insert(_LoopHint(builder.block, node))


def _flag(name: str) -> list[Any]:
    return [f"llvm.loop.{name}"]


def _count(name: str, value: int) -> list[Any]:
    return [f"llvm.loop.{name}", ir.Constant(INT32, value)]


def _off(name: str) -> list[Any]:
    return [f"llvm.loop.{name}", ir.Constant(ir.IntType(1), 0)]


@intrinsic
def stay_rolled(_typing: Any) -> Any:
    """The loop is neither unrolled nor interleaved nor vectorised: one iteration of the body a turn.

    `#pragma nounroll` of Clang only says the first, and what LLVM's vectorizer then does in lanes may be no loop at
    all.  Lanes that were asked for are in the body already, and stay.
    """

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        _place(builder, [_flag("unroll.disable"), _off("vectorize.enable"), _count("interleave.count", 1)])
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def unroll_fully(_typing: Any) -> Any:
    """The loop is written out, if LLVM can tell its trip count (else it says so on standard error)."""

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        _place(builder, [_flag("unroll.full")])
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def unroll_by(_typing: Any, factor: Any) -> Any:
    """The loop does `factor` iterations a turn, and has a remainder loop; LLVM adds no lanes of its own."""
    copies = literal(factor)
    if copies is None:
        return None

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        _place(builder, [_count("unroll.count", copies), _off("vectorize.enable")])
        return context.get_dummy_value()

    return types.none(factor), codegen
