"""Walking and rewriting: everything is visited, nothing is rebuilt without need."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyschedule.ir import nodes, visitors
from pyschedule.ir.build import add, const
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Barrier,
    Break,
    Const,
    Dim,
    Expr,
    If,
    Load,
    Origin,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import FLOAT32, INT64, lanes_of
from tests.ir import trees
from tests.ir.nests import I, J, K, N, array, f32, gemm, kernel, less, load, local, loop, op, ramp, store

BODY: tuple[Stmt, ...] = (
    Alloc(local("t", N)),
    Assign("x", load("A", I), FLOAT32, Origin(0, (I,))),
    loop("j", 0, J, 1, store("t", J, f32(0), less(J, K), Origin(1, (add(I, J),)))),
    If(less(I, N), (Break(),), (While(less(N, I), (Barrier(),)),)),
    Return((Var("x", FLOAT32),)),
)


def test_every_node_declares_the_role_of_its_fields() -> None:
    """An expression or a body in a field without a role would be skipped by every walk."""
    for kind in vars(nodes).values():
        if not (isinstance(kind, type) and issubclass(kind, (nodes.Expr, nodes.Stmt, nodes.Array, nodes.Origin))):
            continue
        for field in dataclasses.fields(kind):
            text = str(field.type)
            role = field.metadata.get(nodes.ROLE)
            assert (role == "child") == ("Expr" in text), f"{kind.__name__}.{field.name}"
            assert (role == "body") == ("Stmt" in text), f"{kind.__name__}.{field.name}"


def test_walks_are_textual_and_parents_come_first() -> None:
    kinds = [type(stmt).__name__ for stmt in visitors.walk(BODY)]
    assert kinds == ["Alloc", "Assign", "For", "Store", "If", "Break", "While", "Barrier", "Return"]
    around = {
        type(stmt).__name__: tuple(loop.source for loop in loops) for stmt, loops in visitors.walk_with_loops(BODY)
    }
    assert around["Store"] == ("j",) and around["Barrier"] == ("",) and around["Return"] == ()


def test_expressions_include_bounds_masks_tests_and_shapes_and_not_origins() -> None:
    names = [expr.name for expr in visitors.expressions(BODY) if isinstance(expr, Var)]
    assert sorted(names) == sorted(["n", "i", "j", "j", "j", "k", "i", "n", "n", "i", "x"])


def test_rewriting_nothing_gives_the_very_objects_back() -> None:
    assert visitors.rewrite(BODY, lambda stmt: None, lambda expr: None) is BODY
    assert visitors.substitute(BODY, {"absent": const(1)}) is BODY
    expr = op("+", load("A", I), f32(1))
    assert visitors.substitute_expr(expr, {"j": I}) is expr
    assert visitors.rewrite(BODY, lambda stmt: stmt, lambda expr: expr) is BODY


def test_a_rewrite_shares_what_it_does_not_touch() -> None:
    changed = visitors.substitute(BODY, {"k": const(7)})
    assert changed is not BODY
    assert [new is old for new, old in zip(changed, BODY, strict=True)] == [True, True, False, True, True]


def test_substitution_reaches_origins_shapes_masks_and_bounds() -> None:
    values = {"i": const(1), "j": const(2), "k": const(3), "n": const(4)}
    changed = visitors.substitute(BODY, values)
    assert not any(isinstance(expr, Var) and expr.name != "x" for expr in visitors.expressions(changed))
    alloc, assign, inner = changed[0], changed[1], changed[2]
    assert isinstance(alloc, Alloc) and alloc.array.shape == (const(4),)
    assert isinstance(assign, Assign) and assign.origin == Origin(0, (const(1),))
    assert isinstance(inner, nodes.For) and isinstance(inner.body[0], Store)
    assert inner.body[0].origin == Origin(1, (nodes.BinOp("+", const(1), const(2), INT64),))


def test_substitution_is_simultaneous() -> None:
    swapped = visitors.substitute_expr(op("-", I, J, INT64), {"i": J, "j": I})
    assert swapped == op("-", J, I, INT64)


def test_a_statement_may_become_none_or_several() -> None:
    def twice(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return (stmt, stmt) if isinstance(stmt, Store) else () if isinstance(stmt, (Break, Alloc)) else None

    changed = visitors.rewrite(BODY, twice)
    kinds = [type(stmt).__name__ for stmt in visitors.walk(changed)]
    assert kinds == ["Assign", "For", "Store", "Store", "If", "While", "Barrier", "Return"]


def test_rewriting_is_bottom_up() -> None:
    seen: list[str] = []

    def note(expr: Expr) -> None:
        seen.append(type(expr).__name__)

    visitors.rewrite((store("A", I, op("+", load("A", J), f32(1))),), expression=note)
    assert seen == ["Var", "Var", "Load", "Const", "BinOp"]


@given(trees.integers(), st.sampled_from(trees.INTEGERS))
def test_substituting_a_name_for_itself_changes_nothing(expr: Expr, name: str) -> None:
    assert visitors.substitute_expr(expr, {name: Var(name)}) == expr
    gone = visitors.substitute_expr(expr, {name: const(5)})
    assert name not in visitors.variables(gone)
    assert visitors.variables(gone) == visitors.variables(expr) - {name}


def test_sets_of_names() -> None:
    assert visitors.read_variables(BODY) == {"i", "j", "k", "n", "x"}
    assert visitors.written_variables(BODY) == {"x"}
    assert visitors.counters(BODY) == {"j"}
    assert visitors.read_arrays(BODY) == {"A"} and visitors.written_arrays(BODY) == {"t"}
    assert visitors.local_arrays(BODY).keys() == {"t"}
    assert visitors.contains(BODY, Barrier) and not visitors.contains(BODY[:3], Barrier, Break)
    made = kernel([array("A"), N], *BODY)
    assert visitors.arrays(made).keys() == {"A", "t"}
    assert visitors.variable_types(made) == {"n": INT64, "x": FLOAT32, "j": INT64}


def test_equality_ignores_places_and_nodes_are_hashable() -> None:
    here = Load("A", (I,), FLOAT32, loc=nodes.Location("k.py", 1, 0))
    assert here == load("A", I) and hash(here) == hash(load("A", I))
    assert len({gemm(), gemm()}) == 1


@pytest.mark.parametrize(
    ("expr", "lanes"),
    [
        (load("A", ramp(I, 4)), 4),
        (load("A", I, mask=less(ramp(I, 8), N)), 8),
        (op("+", f32(1), load("A", ramp(I, 4))), 4),
        (nodes.Select(less(ramp(I, 4), N), f32(1), f32(0), FLOAT32), 4),
        (nodes.Reduce("+", load("A", ramp(I, 4))), 1),
        (nodes.Cast(INT64, load("A", ramp(I, 2))), 2),
        (Const(1, INT64), 1),
        (Dim("A", 0), 1),
    ],
)
def test_types_carry_lanes(expr: Expr, lanes: int) -> None:
    assert lanes_of(expr.type) == lanes
