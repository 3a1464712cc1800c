"""The loop graph: what contains what, and the dependences it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import networkx
import pytest
import sympy

from pyschedule.ir.build import TRUE
from pyschedule.ir.graph import loop_graph
from pyschedule.ir.nodes import Assign, Barrier, If, Kernel, Location, Origin, Stmt, Var, While
from pyschedule.ir.types import INT64
from tests.ir.nests import I, N, array, f32, gemm, kernel, less, load, loop, store


@dataclass
class Edge:
    source: Stmt | int
    target: Stmt | int
    array: str
    distance: Any


def test_gemm_is_a_chain_of_loops_to_one_statement() -> None:
    graph = loop_graph(gemm(), [Edge(0, 0, "C", (0, 0, 1))])
    assert [graph.nodes[node]["label"] for node in range(5)] == [
        "gemm",
        "i",
        "j",
        "k",
        "C[i, j] += A[i, k] * B[k, j]",
    ]
    contains = [(a, b) for a, b, kind in graph.edges(data="kind") if kind == "contains"]
    assert contains == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert graph.nodes[1]["trip_count"] == sympy.Symbol("A.shape[0]", integer=True, nonnegative=True)
    assert graph.nodes[4]["statement"] == 0
    assert graph.edges[4, 4] == {
        "kind": "dependence",
        "array": "C",
        "distance": (0, 0, 1),
        "dependences": (("C", (0, 0, 1)),),
    }


def branching() -> Kernel:
    first = Assign("x", N, INT64, Origin(0, ()), Location("k.py", 2, 4))
    second = store("A", I, f32(1), origin=Origin(1, (I,)))
    again = store("A", I, f32(2), origin=Origin(1, (I,)))
    inner = loop("i", 0, Var("x"), 1, If(TRUE, (second,), (again,)), source="i", piece=1)
    return kernel([array("A"), N], first, inner, While(less(N, N), (Barrier(),), source="w"))


def test_branches_are_looked_through_and_order_is_textual() -> None:
    graph = loop_graph(branching())
    labels = [graph.nodes[node]["label"] for node in sorted(graph)]
    assert labels == ["f", "x = n", "i.1", "A[i] = 1.0", "A[i] = 2.0", "w", "barrier()"]
    assert sorted(graph.successors(2)) == [3, 4]
    assert networkx.is_tree(graph)
    assert str(graph.nodes[1]["loc"]) == "k.py:2:5"
    assert graph.nodes[5]["trip_count"] is None and graph.nodes[2]["trip_count"] is not None


def test_a_dependence_names_statements_by_node_or_by_number() -> None:
    made = branching()
    first = made.body[0]
    graph = loop_graph(made, [Edge(first, 1, "x", ()), Edge(first, 1, "y", (2,))])
    assert {end for _, end, kind in graph.out_edges(1, data="kind") if kind == "dependence"} == {3, 4}
    assert graph.edges[1, 3]["dependences"] == (("x", ()), ("y", (2,)))
    assert (graph.edges[1, 3]["array"], graph.edges[1, 3]["distance"]) == ("x", ())


@pytest.mark.parametrize("end", [7, store("A", N, f32(9))])
def test_a_dependence_of_no_statement_is_an_error(end: Stmt | int) -> None:
    with pytest.raises(ValueError, match="the kernel has no statement"):
        loop_graph(branching(), [Edge(0, end, "A", ())])


def test_a_loop_with_no_closed_form_has_no_count() -> None:
    made = kernel([array("A", dtype="int64")], loop("i", 0, load("A", 0, dtype=INT64), 1))
    assert loop_graph(made).nodes[1]["trip_count"] is None
