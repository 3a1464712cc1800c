"""How statements of generated code become LLVM instructions: those of Numba, with fewer of them.

Numba keeps a variable that several blocks use in memory, and counts references to each array at each use, for LLVM
to find out later that neither is needed.  What generated code is like is known before: nearly all of its variables
are assigned once, ahead of their uses; arrays are the caller's, or memory for the time of the call.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, Final

from numba.core import cgutils, ir, types
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.lowering import Lower

#: Statements that end a function.
_ENDS: Final = (ir.Return, ir.Raise, ir.StaticRaise, ir.DynamicRaise)


class FewerInstructions(Lower):  # type: ignore[misc]
    """Variables that are assigned once are values.  Memory that the function allocates for itself is given back
    when it ends, or allocates anew for the same variable; no other references are counted.
    """

    def _find_singly_assigned_variable(self) -> None:
        self._blk_local_varmap: dict[str, Any] = {}
        self._singly_assigned_vars = set(_values(self.blocks))
        self._own = [name for name in _allocated(self.blocks) if isinstance(self.typeof(name), types.Array)]
        self._singly_assigned_vars.difference_update(self._own)

    def pre_lower(self) -> None:
        super().pre_lower()
        for name in self._own:
            kind = self.context.get_value_type(self.typeof(name))
            self.varmap[name] = cgutils.alloca_once(self.builder, kind, name=name, zfill=True)

    def lower_block(self, block: Any) -> None:
        self._cur_ir_block = block
        for statement in block.body:
            self.loc = statement.loc
            self.lower_inst(statement)

    def lower_inst(self, inst: Any) -> None:
        if isinstance(inst, ir.Assign):
            name = inst.target.name
            self.storevar(self.lower_assign(self.typeof(name), inst), name)
            return
        if isinstance(inst, _ENDS):
            for name in self._own:
                self._release(name)
        super().lower_inst(inst)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        if name in self._singly_assigned_vars:
            self._blk_local_varmap[name] = value
            return
        if name in self._own:
            self._release(name)
        self.builder.store(value, self.getvar(name))

    def _release(self, name: str) -> None:
        super().decref(self.typeof(name), self.loadvar(name))

    def incref(self, typ: Any, val: Any) -> None:
        pass

    def decref(self, typ: Any, val: Any) -> None:
        pass

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """Without looking for an implementation for constants before: only powers have some, and each look in vain
        goes through all that extends Numba."""
        if op is operator.pow or expr.op != "binop":
            return super().lower_binop(resty, expr, op)
        signature = self.fndesc.calltypes[expr]
        function = self.context.typing_context.resolve_value_type(op)
        operands = [
            self.context.cast(self.builder, self.loadvar(operand.name), self.typeof(operand.name), wanted)
            for operand, wanted in zip((expr.lhs, expr.rhs), signature.args, strict=True)
        ]
        result = self.context.get_function(function, signature)(self.builder, operands)
        return self.context.cast(self.builder, result, signature.return_type, resty)


def _values(blocks: dict[int, Any]) -> Iterator[str]:
    """The variables that one statement assigns to, ahead of all that use them."""
    assigned: dict[str, tuple[int, int] | None] = {}
    for offset, block in blocks.items():
        for place, statement in enumerate(block.body):
            if isinstance(statement, ir.Assign):
                name = statement.target.name
                assigned[name] = None if name in assigned else (offset, place)
    dominators = compute_cfg_from_blocks(blocks).dominators()
    for offset, block in blocks.items():
        before = dominators[offset]
        for place, statement in enumerate(block.body):
            for name in _used(statement):
                where = assigned.get(name)
                # Blocks are lowered in the order of their offsets.
                if where is not None and not (where[0] in before and where < (offset, place)):
                    assigned[name] = None
    return (name for name, where in assigned.items() if where is not None)


def _used(statement: Any) -> Iterator[str]:
    if isinstance(statement, ir.Assign):
        value = statement.value
        if isinstance(value, ir.Var):
            yield value.name
        elif isinstance(value, ir.Inst):
            yield from (var.name for var in value.list_vars())
    else:
        yield from (var.name for var in statement.list_vars())


def _allocated(blocks: dict[int, Any]) -> Iterator[str]:
    """The variables of the source (others have a `$`) that hold what a call gave."""
    given: set[str] = set()
    found: dict[str, None] = {}
    for block in blocks.values():
        for statement in block.body:
            if not isinstance(statement, ir.Assign):
                continue
            name, value = statement.target.name, statement.value
            called = isinstance(value, ir.Expr) and value.op == "call"
            if called or (isinstance(value, ir.Var) and value.name in given):
                if name.startswith("$"):
                    given.add(name)
                else:
                    found[name] = None
    return iter(found)
