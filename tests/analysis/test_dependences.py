"""Which rearrangements of a nest are legal, and what a refusal says."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from pyschedule.analysis.conflicts import Conflict, sample
from pyschedule.analysis.dependences import Dependences, Edge
from pyschedule.errors import Unsupported
from tests.analysis.nests import nest


def check(
    source: str, new: str, params: str, *, reorder: bool = True, expanded: Collection[str] = ()
) -> Conflict | None:
    before, after = nest(source, params), nest(new, params)
    return Dependences(before).conflict(after, reorder_reductions=reorder, expanded=expanded)


GEMM = """
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]
"""


def tiled_gemm(last: str = "min(i_1 + 6, min(i_0 + 192, A.shape[0]))") -> str:
    return f"""
    for k_0 in range(0, A.shape[1], 384):
        for i_0 in range(0, A.shape[0], 192):
            for i_1 in range(i_0, min(i_0 + 192, A.shape[0]), 6):
                for k_1 in range(k_0, min(k_0 + 384, A.shape[1])):
                    for j in range(B.shape[1]):
                        for i_2 in range(i_1, {last}):
                            C[i_2, j] += A[i_2, k_1] * B[k_1, j]  # 0: i_2, j, k_1
    """


# ------------------------------------------------------------------------------------------------ coverage


def test_tiles_that_divide_nothing_run_every_iteration_once() -> None:
    assert check(GEMM, tiled_gemm(), "A:2 B:2 C:2") is None


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ("min(i_1 + 6, i_0 + 192)", "does not run in the source, and would"),
        ("min(i_1 + 5, min(i_0 + 192, A.shape[0]))", "would not run"),
        ("min(i_1 + 7, min(i_0 + 192, A.shape[0]))", "would run more than once"),
    ],
)
def test_a_wrong_tail_is_found_with_an_iteration(last: str, reason: str) -> None:
    found = check(GEMM, tiled_gemm(last), "A:2 B:2 C:2")
    assert found is not None and (found.kind, found.reason) == ("coverage", reason)
    assert found.source is not None and [name for name, _ in found.source.counters] == ["i", "j", "k"]
    assert str(found).startswith(f"C[i, j] {reason} at (i=")


def test_case_2_two_splits_with_a_guard_on_the_whole_only_run_points_twice() -> None:
    """48 then 32: the second inner tile runs on into the next outer tile."""
    source = """
        for i in range(100):
            C[i] += 1.0
    """
    new = """
        for i_0 in range(0, 100, 48):
            for i_1 in range(i_0, i_0 + 48, 32):
                for i_2 in range(i_1, min(i_1 + 32, {bound})):
                    C[i_2] += 1.0  # 0: i_2
    """
    found = check(source, new.format(bound="100"), "C")
    assert found is not None and found.reason == "would run more than once"
    assert found.source is not None and found.source.counters == (("i", 48),)
    assert check(source, new.format(bound="min(i_0 + 48, 100)"), "C") is None


@pytest.mark.parametrize("bounds", ["9, -1, -4", "1, 10, 3", "2, 6, 2", "5, 2"])
def test_any_step_and_direction_is_followed(bounds: str) -> None:
    source = f"""
        for i in range({bounds}):
            A[i] = A[i] * 2.0
    """
    assert check(source, source.replace("* 2.0", "* 2.0  # 0: i"), "A") is None
    values = list(range(*map(int, bounds.split(","))))
    listed = "\n".join(f"A[{value}] = A[{value}] * 2.0  # 0: {value}" for value in values)
    assert check(source, listed or "A[0] = A[0]  # 1:", "A") is None or not values
    if values:
        missing = check(source, "\n".join(listed.splitlines()[1:]), "A")
        assert missing is not None and missing.source is not None
        assert missing.source.counters == (("i", values[0]),)


def test_reversing_a_loop_turns_the_order_of_its_iterations() -> None:
    source = """
        for i in range(N):
            A[i] = A[i + {shift}] * 2.0
    """
    new = """
        for i_r in range(N - 1, -1, -1):
            A[i_r] = A[i_r + {shift}] * 2.0  # 0: i_r
    """
    assert check(source.format(shift=0), new.format(shift=0), "A N:int") is None
    found = check(source.format(shift=1), new.format(shift=1), "A N:int")
    assert found is not None and found.kind == "anti"
    assert str(found) == "A[i + 1] is read at (i=0) and written at (i=1) as A[i]: kernel.py:2:12"


def test_a_dropped_or_unknown_statement_is_found() -> None:
    source = "A[0] = 1.0\nA[1] = 2.0"
    found = check(source, "A[0] = 1.0  # 0:", "A")
    assert found is not None and (found.kind, found.name) == ("coverage", "A")
    found = check(source, "A[0] = 1.0  # 0:\nA[1] = 2.0  # 1:\nA[2] = 3.0  # 7:", "A")
    assert found is not None and found.kind == "unsupported"
    found = check(source, "A[0] = 1.0  # 0:\nA[1] = 2.0  # 1:\nA[2] = 3.0", "A")
    assert found is not None and "no statement of the source" in found.reason


# --------------------------------------------------------------------------------------------------- order


def test_case_18_interchange_against_an_anti_dependence_names_both_iterations() -> None:
    source = """
        for m in range(3):
            for i in range(4):
                A[i] = A[i + 1] + 2.0
    """
    new = """
        for i in range(4):
            for m in range(3):
                A[i] = A[i + 1] + 2.0  # 0: m, i
    """
    found = check(source, new, "A")
    assert found is not None and found.kind == "flow"
    assert str(found) == "A[i] is written at (m=0, i=1) and read at (m=1, i=0) as A[i + 1]: kernel.py:3:9"


def test_case_17_a_triangle_is_interchanged_with_the_right_bounds_only() -> None:
    source = """
        for i in range(10):
            for j in range(i + 1):
                for k in range(3):
                    C[i, j] += A[i, k] * B[j, k]
    """
    right = """
        for j in range(10):
            for i in range(j, 10):
                for k in range(3):
                    C[i, j] += A[i, k] * B[j, k]  # 0: i, j, k
    """
    assert check(source, right, "A:2 B:2 C:2") is None
    found = check(source, right.replace("range(j, 10)", "range(10)"), "A:2 B:2 C:2")
    assert found is not None and found.kind == "coverage" and found.source is not None
    assert found.source.counters == (("i", 0), ("j", 1), ("k", 0))


def test_an_interchange_is_legal_where_no_dependence_crosses() -> None:
    source = """
        for i in range(1, N):
            for j in range(1, N):
                A[i, j] = A[i - 1, j {sign} 1] + 1.0
    """
    new = """
        for j in range(1, N):
            for i in range(1, N):
                A[i, j] = A[i - 1, j {sign} 1] + 1.0  # 0: i, j
    """
    assert check(source.format(sign="-"), new.format(sign="-"), "A:2 N:int") is None
    found = check(source.format(sign="+"), new.format(sign="+"), "A:2 N:int")
    assert found is not None and found.kind == "flow"


def test_case_15_moduli_of_the_counter_are_exact() -> None:
    """Writes to `p[(base + k) % 4]`: the last one to each element must stay the last."""
    source = """
        for k in range(10):
            P[(base + k) % 4] = Q[k]
    """
    grouped = """
        for r in range({period}):
            for k in range(r, 10, {period}):
                P[(base + k) % 4] = Q[k]  # 0: k
    """
    assert check(source, grouped.format(period=4), "P Q base:int") is None
    found = check(source, grouped.format(period=3), "P Q base:int")
    assert found is not None and found.kind == "output"
    assert found.source is not None and found.sink is not None
    first, second = found.source.counters[0][1], found.sink.counters[0][1]
    assert first < second and (second - first) % 4 == 0 and (first % 3, first) > (second % 3, second)


def test_reductions_change_places_only_with_permission() -> None:
    assert check(GEMM, tiled_gemm(), "A:2 B:2 C:2", reorder=False) is None  # k still rises for each i, j
    backwards = GEMM.replace("range(A.shape[1])", "range(A.shape[1] - 1, -1, -1)").replace(
        "B[k, j]", "B[k, j]  # 0: i, j, k"
    )
    assert check(GEMM, backwards, "A:2 B:2 C:2") is None
    found = check(GEMM, backwards, "A:2 B:2 C:2", reorder=False)
    assert found is not None and (found.kind, found.name) == ("flow", "C")


def test_exact_reductions_need_no_permission() -> None:
    source = """
        n = 0
        for i in range(N):
            n += lut[i]
        return n
    """
    new = """
        n = 0  # 0:
        for i in range(N - 1, -1, -1):
            n += lut[i]  # 1: i
        return n
    """
    assert check(source, new, "lut N:int", reorder=False) is None
    maximum = source.replace("n += lut[i]", "n = max(n, lut[i])")
    assert check(maximum, new.replace("n += lut[i]", "n = max(n, lut[i])"), "lut N:int", reorder=False) is None
    late = """
        for i in range(N):
            n += lut[i]  # 1: i
        n = 0  # 0:
        return n
    """
    found = check(source, late, "lut N:int")
    assert found is not None and found.name == "n"


def test_steps_of_different_operations_keep_their_order() -> None:
    source = """
        for i in range(4):
            A[0] += B[i]
        for i in range(4):
            A[0] {op}= B[i]
    """
    new = """
        for i in range(4):
            A[0] += B[i]  # 0: i
            A[0] {op}= B[i]  # 1: i
    """
    assert check(source.format(op="+"), new.format(op="+"), "A B") is None
    found = check(source.format(op="*"), new.format(op="*"), "A B")
    assert found is not None and found.name == "A"


def test_a_guarded_maximum_is_a_reduction() -> None:
    source = """
        m = A[0]
        for i in range(N):
            if A[i] > m:
                m = A[i]
        B[0] = m
    """
    new = """
        m = A[0]  # 0:
        for i in range(N - 1, -1, -1):
            if A[i] > m:
                m = A[i]  # 1: i
        B[0] = m  # 2:
    """
    assert check(source, new, "A B N:int", reorder=False) is None
    position = source.replace("m = A[i]", "m = A[i]\n                B[1] = A[i]")
    moved = new.replace("m = A[i]  # 1: i", "m = A[i]  # 1: i\n                B[1] = A[i]  # 2: i")
    found = check(position, moved.replace("= m  # 2:", "= m  # 3:"), "A B N:int")
    assert found is not None  # which maximum was met last shows in B[1]


# --------------------------------------------------------------------------------------------- live ranges

TEMPORARY = """
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for k in range(A.shape[1]):
                s += A[i, k] * B[k, j]
            C[i, j] = s
"""


def test_a_temporary_is_tiled_with_its_statements() -> None:
    new = """
    for i_0 in range(0, A.shape[0], 8):
        for j_0 in range(0, B.shape[1], 16):
            for i_1 in range(i_0, min(i_0 + 8, A.shape[0])):
                for j_1 in range(j_0, min(j_0 + 16, B.shape[1])):
                    s = 0.0  # 0: i_1, j_1
                    for k_0 in range(0, A.shape[1], 64):
                        for k_1 in range(k_0, min(k_0 + 64, A.shape[1])):
                            s += A[i_1, k_1] * B[k_1, j_1]  # 1: i_1, j_1, k_1
                    C[i_1, j_1] = s  # 2: i_1, j_1
    """
    assert check(TEMPORARY, new, "A:2 B:2 C:2", reorder=False) is None


def test_a_live_range_cut_in_two_needs_a_copy_for_every_iteration() -> None:
    new = """
    for i in range(A.shape[0]):
        for j_1 in range(B.shape[1]):
            s = 0.0  # 0: i, j_1
        for k in range(A.shape[1]):
            for j_2 in range(B.shape[1]):
                s += A[i, k] * B[k, j_2]  # 1: i, j_2, k
        for j_3 in range(B.shape[1]):
            C[i, j_3] = s  # 2: i, j_3
    """
    found = check(TEMPORARY, new, "A:2 B:2 C:2")
    assert found is not None and found.name == "s"
    assert check(TEMPORARY, new, "A:2 B:2 C:2", expanded={"s"}) is None
    late = new.replace("            s = 0.0  # 0: i, j_1\n", "            C[i, j_1] = s  # 2: i, j_1\n")
    late = late.replace("            C[i, j_3] = s  # 2: i, j_3\n", "            s = 0.0  # 0: i, j_3\n")
    found = check(TEMPORARY, late, "A:2 B:2 C:2", expanded={"s"})
    assert found is not None and found.kind == "flow"


def test_an_argument_that_comes_with_a_value_has_no_copies() -> None:
    source = """
        for i in range(4):
            W[0] = {read}
            A[i] = W[0]
    """
    new = """
        for i in range(4):
            W[0] = {read}  # 0: i
        for j in range(4):
            A[j] = W[0]  # 1: j
    """
    assert check(source.format(read="B[i]"), new.format(read="B[i]"), "A B W", expanded={"W"}) is None
    found = check(source.format(read="W[0] / B[i]"), new.format(read="W[0] / B[i]"), "A B W", expanded={"W"})
    assert found is not None and found.name == "W"
    kept = source.format(read="W[0] / B[i]")
    found = check(
        kept, kept.replace("B[i]", "B[i]  # 0: i").replace("= W[0]\n", "= W[0]  # 1: i\n"), "A B W", expanded={"W"}
    )
    assert found is not None and found.name == "W"  # even where nothing changes places


def test_an_imperfect_nest_is_distributed_where_values_allow() -> None:
    source = """
        for i in range(N):
            T[i] = A[i]
            for j in range(M):
                B[i, j] = T[i {shift}] * 2.0
    """
    new = """
        for i in range(N):
            T[i] = A[i]  # 0: i
        for j in range(M):
            for i_2 in range(N):
                B[i_2, j] = T[i_2 {shift}] * 2.0  # 1: i_2, j
    """
    params = "A B:2 T N:int M:int"
    assert check(source.format(shift=""), new.format(shift=""), params) is None
    assert check(source.format(shift="- 1"), new.format(shift="- 1"), params) is None
    found = check(source.format(shift="+ 1"), new.format(shift="+ 1"), params)
    assert found is not None and found.kind == "anti"


def test_dead_stores_may_change_places_and_the_last_one_may_not() -> None:
    source = """
        for i in range(3):
            A[i] = 1.0
            A[i] = 2.0
            {rest}
    """
    new = """
        for i in range(2, -1, -1):
            A[i] = {first}
            A[i] = {second}
            {rest}
    """
    dead = {"first": "2.0  # 1: i", "second": "1.0  # 0: i"}
    assert check(source.format(rest="A[i] = 3.0"), new.format(**dead, rest="A[i] = 3.0  # 2: i"), "A") is None
    found = check(source.format(rest=""), new.format(**dead, rest=""), "A")
    assert found is not None and found.kind == "output"
    assert "is written at (i=0) and written again at (i=0)" in str(found)


# ------------------------------------------------------------------------------------------ what it reads


def test_reads_happen_only_in_the_arm_that_is_taken() -> None:
    """Padding: the arm guards the halo, so no iteration reads what another writes."""
    source = """
        for i in range(N):
            A[i] = A[i - 1] if i >= N else 0.0
    """
    new = """
        for i_r in range(N - 1, -1, -1):
            A[i_r] = A[i_r - 1] if i_r >= N else 0.0  # 0: i_r
    """
    assert check(source, new, "A N:int") is None
    found = check(source.replace(">= N", ">= 1"), new.replace(">= N", ">= 1"), "A N:int")
    assert found is not None and found.kind == "flow"
    for word, legal in (("or", True), ("and", False)):  # the right side is read only where the left does not decide
        test = f"i < N {word} A[i - 1] > 0.0"
        padded = source.replace("A[i - 1] if i >= N", f"1.0 if {test}")
        turned = new.replace("A[i_r - 1] if i_r >= N", f"1.0 if {test.replace('i ', 'i_r ')}")
        assert (check(padded, turned, "A N:int") is None) == legal


def test_a_test_of_data_is_read_where_it_stands() -> None:
    source = """
        for i in range(1, N):
            if A[i - 1] > 0.0:
                B[i] = 1.0
            A[i] = C[i]
    """
    new = """
        for i in range(1, N):
            A[i] = C[i]  # 1: i
        for j in range(1, N):
            if A[j - 1] > 0.0:
                B[j] = 1.0  # 0: j
    """
    assert check(source, new, "A B C N:int") is None
    found = check(source.replace("A[i - 1]", "A[i]"), new.replace("A[j - 1]", "A[j]"), "A B C N:int")
    assert found is not None and (found.kind, found.name) == ("anti", "A")
    unguarded = new.replace("            if A[j - 1] > 0.0:\n                B", "            B")
    found = check(source, unguarded, "A B C N:int")
    assert found is not None and "conditions" in found.reason


def test_an_index_that_is_data_may_be_any() -> None:
    source = """
        for i in range(N):
            A[lut[i]] = B[i]
    """
    backwards = """
        for i in range(N - 1, -1, -1):
            A[lut[i]] = B[i]  # 0: i
    """
    found = check(source, backwards, "A B lut N:int")
    assert found is not None and (found.kind, found.name) == ("output", "A")
    histogram = source.replace("= B[i]", "+= B[i]")
    assert check(histogram, backwards.replace("= B[i]", "+= B[i]"), "A B lut N:int") is None


def test_locals_that_hold_an_affine_value_are_seen_through() -> None:
    source = """
        m = A.shape[0] // 2
        for i in range(m):
            t = 2 * i
            A[t] = A[t + {apart}] + 1.0
    """
    new = """
        m = A.shape[0] // 2  # 0:
        for i in range(m - 1, -1, -1):
            t = 2 * i  # 1: i
            A[t] = A[t + {apart}] + 1.0  # 2: i
    """
    assert check(source.format(apart=1), new.format(apart=1), "A") is None
    found = check(source.format(apart=2), new.format(apart=2), "A")
    assert found is not None and found.name == "A"


# ----------------------------------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("while A[0] > 0.0:\n    A[0] = A[1]", "a while loop"),
        ("for i in range(9):\n    if A[i] < 0.0:\n        break\n    A[i] = 0.0", "left early"),
        ("for i in range(lut[0]):\n    A[i] = 0.0", "the bound lut[0] of loop 'i' is not affine"),
        ("for i in range(0, 9, lut[0]):\n    A[i] = 0.0", "the step of loop 'i' is not a constant"),
        ("if A[0] > 0.0:\n    return\nA[0] = 0.0", "a return before the end"),
    ],
)
def test_what_is_not_modelled_is_refused_with_its_place(source: str, reason: str) -> None:
    kernel = nest(source, "A lut")
    found = Dependences(kernel).conflict(kernel, reorder_reductions=True)
    assert found is not None and found.kind == "unsupported"
    assert reason in found.reason and found.loc is not None and found.loc.line in (1, 2, 3)
    with pytest.raises(Unsupported):
        Dependences(kernel).edges()


def test_a_question_that_takes_too_long_is_refused() -> None:
    source = nest(GEMM, "A:2 B:2 C:2")
    dependences = Dependences(source)
    assert dependences.unsupported() is None
    dependences._context.set_max_operations(500)
    found = dependences.conflict(nest(tiled_gemm(), "A:2 B:2 C:2"), reorder_reductions=True)
    assert found is not None and "too complex" in found.reason
    dependences._context.set_max_operations(20_000_000)
    assert dependences.conflict(nest(tiled_gemm(), "A:2 B:2 C:2"), reorder_reductions=True) is None


def test_products_of_extents_are_bounds_like_any_other() -> None:
    source = "for i in range(A.shape[0] * A.shape[1]):\n    B[i] = B[i] + 1.0"
    new = """
        for i_0 in range(0, A.shape[0] * A.shape[1], 8):
            for i_1 in range(i_0, min(i_0 + 8, A.shape[0] * A.shape[1])):
                B[i_1] = B[i_1] + 1.0  # 0: i_1
    """
    assert check(source, new, "A:2 B") is None


# ----------------------------------------------------------------------------------------------- the edges


def test_edges_have_exact_distances() -> None:
    source = """
        for m in range(3):
            for i in range(4):
                A[i] = A[i + 1] + 2.0
    """
    assert set(Dependences(nest(source, "A")).edges()) == {
        Edge(0, 0, "A", "output", (1, 0), False),
        Edge(0, 0, "A", "flow", (1, -1), False),
        Edge(0, 0, "A", "anti", (0, 1), False),
    }
    flow = [edge for edge in Dependences(nest(TEMPORARY, "A:2 B:2 C:2")).edges() if edge.kind == "flow"]
    assert {(edge.source, edge.target, edge.distance, edge.reduction) for edge in flow} == {
        (0, 1, (0, 0), False),
        (0, 2, (0, 0), False),
        (1, 1, (0, 0, 1), True),
        (1, 2, (0, 0), False),
    }
    varying = "for i in range(N):\n    A[2 * i] = A[i] + 1.0"
    assert [edge.distance for edge in Dependences(nest(varying, "A N:int")).edges()] == [("*",)]


def test_an_example_is_found_where_isl_knows_no_least_point() -> None:
    """isl calls the least point of this set, of which nothing bounds two coordinates, void."""
    import islpy as isl

    points = isl.Set.read_from_str(
        isl.Context(),
        """[p, q] -> { [x, free, y, other] : (1 + p) mod 2 = 0 and (3 - 2p + x) mod 12 = 0
           and (3 - 2p + y) mod 12 = 0 and p <= x < p + q and p <= y < p + q and 3*floor((y - p)/3) > x - p }""",
    )
    x, _, y, _ = sample(points)
    assert x < y and (y - x) % 12 == 0
