"""Which loops may run their iterations at once, on threads or in lanes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from pyschedule.analysis.conflicts import Conflict
from pyschedule.analysis.dependences import Dependences
from tests.analysis.nests import nest


def lanes(
    source: str, params: str, vector: Mapping[str, int], *, reorder: bool = True, expanded: Collection[str] = ()
) -> Conflict | None:
    kernel = nest(source, params)
    return Dependences(kernel).conflict(kernel, reorder_reductions=reorder, vector=vector, expanded=expanded)


def threads(source: str, params: str, loop: str, expanded: Collection[str] = ()) -> Conflict | None:
    kernel = nest(source, params)
    return Dependences(kernel).conflict(kernel, reorder_reductions=True, parallel=[loop], expanded=expanded)


# --------------------------------------------------------------------------------------------------- lanes


@pytest.mark.parametrize(("width", "legal"), [(2, True), (3, True), (4, True), (5, False), (8, False)])
def test_lanes_fit_into_the_distance_of_a_dependence(width: int, legal: bool) -> None:
    source = "for i in range(4, N):\n    A[i] = A[i - 4] + 1.0"
    found = lanes(source, "A N:int", {"i": width})
    assert (found is None) == legal
    if found is not None:
        assert found.kind == "flow" and found.source is not None and found.sink is not None
        assert str(found.source) == "(i=4)" and str(found.sink) == "(i=8)"
        assert found.reason == f"{width} iterations of 'i' would run at once"


@pytest.mark.parametrize("width", [2, 4, 16])
def test_a_read_ahead_is_no_obstacle_because_lanes_read_before_they_write(width: int) -> None:
    assert lanes("for i in range(N):\n    A[i] = A[i + 1]", "A N:int", {"i": width}) is None


def test_chunks_are_counted_from_the_start_of_the_loop() -> None:
    """One dependence, from i=3 to i=4: in chunks of 4 from 0 they part, in chunks from 1 they meet."""
    source = "for i in range({start}, 8):\n    A[i] = B[i] if i == 3 else (A[3] if i == 4 else 0.0)"
    assert lanes(source.format(start=0), "A B", {"i": 4}) is None
    found = lanes(source.format(start=1), "A B", {"i": 4})
    assert found is not None and found.kind == "flow"


def test_statements_run_in_all_lanes_one_after_the_other() -> None:
    source = """
        for i in range(N):
            A[i] = B[i]
            C[i] = A[i {shift}]
    """
    assert lanes(source.format(shift=""), "A B C N:int", {"i": 8}) is None
    assert lanes(source.format(shift="- 1"), "A B C N:int", {"i": 8}) is None
    found = lanes(source.format(shift="+ 1"), "A B C N:int", {"i": 8})
    assert found is not None and found.kind == "anti"
    assert str(found.source) == "(i=0)" and str(found.sink) == "(i=1)"


def test_an_outer_loop_runs_in_lanes_with_its_inner_loops_in_lockstep() -> None:
    source = """
        for i in range(N):
            for k in range(M):
                A[i, k] = A[{read}] + 1.0
    """
    params = "A:2 N:int M:int"
    assert lanes(source.format(read="i, k - 1"), params, {"i": 8}) is None
    assert lanes(source.format(read="i - 1, k - 1"), params, {"i": 8}) is None  # k - 1 is done in all lanes
    found = lanes(source.format(read="i - 1, k + 1"), params, {"i": 8})
    assert found is not None and found.kind == "flow"
    found = lanes(source.format(read="i - 1, k"), params, {"i": 8})
    assert found is not None and found.kind == "flow"


def test_inner_loops_that_start_apart_are_refused() -> None:
    source = "for i in range(N):\n    for k in range({bounds}):\n        A[i, k] = 0.0"
    assert lanes(source.format(bounds="i"), "A:2 N:int", {"i": 4}) is None  # ends apart: masked
    found = lanes(source.format(bounds="i, N"), "A:2 N:int", {"i": 4})
    assert found is not None and found.kind == "unsupported" and "starts elsewhere" in found.reason


def test_two_lanes_that_write_one_element_conflict() -> None:
    found = lanes("for i in range(8):\n    A[i // 2] = B[i]", "A B", {"i": 4})
    assert found is not None and found.kind == "output"
    assert lanes("for i in range(8):\n    A[i // 2] = B[i]", "A B", {"i": 1}) is None


def test_a_scalar_is_private_to_a_lane_unless_its_value_passes_on() -> None:
    private = """
        for i in range(N):
            s = A[i] * 2.0
            B[i] = s + s
    """
    assert lanes(private, "A B N:int", {"i": 8}) is None
    carried = """
        s = 0.0
        for i in range(N):
            B[i] = s
            s = A[i]
    """
    found = lanes(carried, "A B N:int", {"i": 8})
    assert found is not None and (found.kind, found.name) == ("flow", "s")
    last = """
        s = 0.0
        for i in range(N):
            s = A[i]
        B[0] = s
    """
    found = lanes(last, "A B N:int", {"i": 8})
    assert found is not None and found.name == "s"
    before = """
        s = A[0]
        for i in range(N):
            B[i] = s
    """
    assert lanes(before, "A B N:int", {"i": 8}) is None


SUM = """
    s = 0.0
    for i in range(N):
        s += A[i]
    B[0] = s
"""


def test_lanes_are_combined_where_a_reduction_may_be_regrouped() -> None:
    assert lanes(SUM, "A B N:int", {"i": 8}) is None
    found = lanes(SUM, "A B N:int", {"i": 8}, reorder=False)
    assert found is not None and (found.kind, found.name) == ("flow", "s")
    assert lanes(SUM.replace("s += A[i]", "s = max(s, A[i])"), "A B N:int", {"i": 8}, reorder=False) is None


def test_a_sum_that_is_read_on_the_way_cannot_be_combined_later() -> None:
    for text in ("s += A[i]\n        B[i] = s", "B[i] = s\n        s += A[i]"):
        found = lanes(SUM.replace("s += A[i]", text), "A B N:int", {"i": 8})
        assert found is not None and found.name == "s"
    element = "for i in range(N):\n    B[0] += A[i]\n    C[i] = B[0]"
    found = lanes(element, "A B C N:int", {"i": 8})
    assert found is not None and found.name == "B"
    late = "for i in range(8):\n    B[0] += A[i]\n    if i == 7:\n        C[0] = B[0]"
    found = lanes(late, "A B C", {"i": 4})
    assert found is not None and found.reason == "lanes of 'i' are combined only after the loop"


def test_an_accumulator_element_must_be_the_loops_own() -> None:
    gemm = """
        for i in range(N):
            for j in range(N):
                for k in range(N):
                    C[i, j] += A[i, k] * B[k, j]
    """
    for loop in "ijk":
        assert lanes(gemm, "A:2 B:2 C:2 N:int", {loop: 8}) is None
    assert lanes(gemm, "A:2 B:2 C:2 N:int", {"j": 8}, reorder=False) is None
    assert lanes(gemm, "A:2 B:2 C:2 N:int", {"k": 8}, reorder=False) is not None
    pairs = lanes("for i in range(N):\n    A[i // 2] += B[i]", "A B N:int", {"i": 4})
    assert pairs is not None and pairs.kind == "output"
    histogram = lanes("for i in range(6):\n    A[lut[i]] += 1.0", "A lut", {"i": 4})
    assert histogram is not None and histogram.name == "A"  # equal indices in one vector would count once
    sliding = """
        for i in range(N):
            for k in range(3):
                A[i + k] += B[i]
    """
    assert lanes(sliding, "A B N:int", {"i": 8}) is None  # at each k every lane has its own element


def test_copies_of_a_scalar_still_carry_what_passes_between_lanes() -> None:
    row = """
        for i in range(N):
            s = 0.0
            for k in range(N):
                s += A[i, k]
            B[i] = s
    """
    for loop in "ik":
        assert lanes(row, "A:2 B N:int", {loop: 4}, expanded={"s"}) is None
    found = lanes(row, "A:2 B N:int", {"k": 4}, expanded={"s"}, reorder=False)
    assert found is not None and found.name == "s"
    prefix = row.replace("s += A[i, k]", "s += A[i, k]\n                C[k] = s")
    found = lanes(prefix, "A:2 B C N:int", {"k": 4}, expanded={"s"})
    assert found is not None


def test_lanes_inside_lanes_are_refused() -> None:
    nested = "for i in range(4):\n    for j in range(4):\n        A[i, j] = 0.0"
    found = lanes(nested, "A:2", {"i": 4, "j": 4})
    assert found is not None and "lanes inside its lanes" in found.reason


# ------------------------------------------------------------------------------------------------- threads


def test_case_20_threads_must_not_accumulate_into_one_element() -> None:
    found = threads("for i in range(1000):\n    Y[0] += X[i]", "X Y", "i")
    assert found is not None and found.name == "Y"
    assert found.source is not None and found.source.text == "Y[0]"
    assert str(found.source) == "(i=0)" and str(found.sink) == "(i=1)"


def test_a_sum_shared_by_threads_names_two_iterations() -> None:
    found = threads(SUM, "A B N:int", "i")
    assert found is not None and (found.kind, found.name) == ("flow", "s")
    assert str(found) == "s is written at (i=0) and read at (i=1): kernel.py:3:5"


def test_case_9_a_loop_from_one_is_parallel() -> None:
    source = "for i in range(1, 13):\n    Z[i] = X[i] + Y[i]"
    assert threads(source, "X Y Z", "i") is None
    assert lanes(source, "X Y Z", {"i": 8}) is None


@pytest.mark.parametrize(("text", "legal"), [("A[i] + 1.0", True), ("A[i + 1]", False), ("A[i - 9]", True)])
def test_threads_share_no_element(text: str, legal: bool) -> None:
    assert (threads(f"for i in range(9):\n    A[i] = {text}", "A", "i") is None) == legal


def test_scalars_and_inner_arrays_are_private_to_a_thread() -> None:
    source = """
        for i in range(N):
            w = empty(4)
            s = A[i]
            for r in range(4):
                w[r] = s
            for r in range(4):
                B[i, r] = w[3 - r]
    """
    assert threads(source, "A B:2 N:int", "i") is None
    outer = source.replace("            w = empty(4)\n", "").replace("for i in", "w = empty(4)\n        for i in")
    found = threads(outer, "A B:2 N:int", "i")
    assert found is not None and found.name == "w"
    assert threads(outer, "A B:2 N:int", "i", expanded={"w"}) is None
    carried = source.replace("w[3 - r]", "w[3 - r] + s").replace("s = A[i]", "s = A[i] if i < 1 else s")
    found = threads(carried, "A B:2 N:int", "i")
    assert found is not None and found.name == "s"


def test_what_a_private_scalar_held_before_or_holds_after_is_a_conflict() -> None:
    before = """
        s = A[0]
        for i in range(N):
            if A[i] > 0.0:
                s = A[i]
            B[i] = A[i]
        C[0] = 1.0
    """
    assert threads(before, "A B C N:int", "i") is None
    found = threads(before.replace("B[i] = A[i]", "B[i] = s"), "A B C N:int", "i")
    assert found is not None and found.name == "s"
    found = threads(before.replace("C[0] = 1.0", "C[0] = s"), "A B C N:int", "i")
    assert found is not None and found.name == "s"
    argument = """
        for i in range(N):
            B[i] = s
            if i == 5:
                s = 2.0
    """
    found = threads(argument, "A B N:int s:float", "i")
    assert found is not None and found.name == "s"


def test_an_inner_loop_may_be_parallel_where_the_outer_is_not() -> None:
    source = """
        for t in range(9):
            for i in range(N):
                A[t + 1, i] = A[t, i + 1]
    """
    assert threads(source, "A:2 N:int", "i") is None
    found = threads(source, "A:2 N:int", "t")
    assert found is not None and found.kind == "flow"


def test_tiles_run_in_parallel_and_their_points_in_lanes() -> None:
    source = """
        for i in range(N):
            for j in range(N):
                B[i, j] = A[i, j - 1] + A[i, j + 1]
    """
    new = nest(
        """
        for i_0 in range(0, N, 8):
            for j_0 in range(0, N, 64):
                for i_1 in range(i_0, min(i_0 + 8, N)):
                    for j_1 in range(j_0, min(j_0 + 64, N)):
                        B[i_1, j_1] = A[i_1, j_1 - 1] + A[i_1, j_1 + 1]  # 0: i_1, j_1
        """,
        "A:2 B:2 N:int",
    )
    dependences = Dependences(nest(source, "A:2 B:2 N:int"))
    both = {"parallel": ["i_0"], "vector": {"j_1": 16}}
    assert dependences.conflict(new, reorder_reductions=False, **both) is None  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- carried


def test_carried_tells_parallel_loops_and_reductions_from_the_rest() -> None:
    dependences = Dependences(
        nest(
            """
            for i in range(N):
                for k in range(N):
                    C[i] += A[i, k]
                for t in range(1, N):
                    D[i, t] = D[i, t - 1]
            """,
            "A:2 C D:2 N:int",
        )
    )
    assert dependences.carried("i") is None
    assert dependences.carried("k") is None
    found = dependences.carried("t")
    assert found is not None and str(found.source) == "(i=0, t=1)" and str(found.sink) == "(i=0, t=2)"
    missing = dependences.carried("x")
    assert missing is not None and missing.kind == "unsupported"
