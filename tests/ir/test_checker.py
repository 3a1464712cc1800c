"""The checker: a kernel that breaks a rule is refused by that rule, and rules are quick."""

from __future__ import annotations

import time

import pytest

from pyschedule.errors import InternalError
from pyschedule.ir import checker
from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.build import TRUE, const
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Barrier,
    BinOp,
    BoolOp,
    Break,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    If,
    Kernel,
    Location,
    Origin,
    Poll,
    Reduce,
    Return,
    Select,
    Stmt,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.survey import survey
from pyschedule.ir.types import BOOL, FLOAT32, FLOAT64, INT64, Scalar, Vector
from tests.ir.nests import I, J, N, array, f32, gemm, kernel, less, load, local, loop, op, ramp, store
from tests.ir.test_interpreter_threads import staged_gemm

A, T = array("A"), Var("t")
H = Scalar("float16")
LANES = Vector(FLOAT32, 4)


def one(*body: Stmt, **kwargs: object) -> Kernel:
    """A kernel of one array `A` and one integer `n`."""
    return kernel([A, N], *body, **kwargs)


def transposed(*places: tuple[object, ...], more: tuple[Stmt, ...] = ()) -> Kernel:
    """Stores to a two-dimensional array `B` that are said to be a block."""
    stores = tuple(store("B", place, f32(1)) for place in places)
    return kernel([array("B", rank=2, unit_axis=1), N], TransposedStores((*stores, *more)))


def threads(*body: Stmt) -> Kernel:
    return one(loop("t", 0, 8, 1, *body, mapping="thread.x"))


def work(*body: Stmt) -> Stmt:
    return loop("i", 0, 4, 1, *body, mapping="cooperative")


acc, tile = local("acc", 2, space="register"), local("tile", 2, space="shared")

BROKEN: dict[str, list[tuple[Kernel, str]]] = {
    "every_variable_is_bound": [
        (one(store("A", I, f32(0))), "i has no value in `A[i] = 0.0`"),
        (one(loop("i", 0, N, 1), store("A", I, f32(0))), "i has no value"),
        (one(loop("i", 0, I, 1)), "i has no value in `for i in range(i):`"),
        (one(store("A", N, f32(0), origin=Origin(0, (J,)))), "j has no value"),
        (one(If(TRUE, (Assign("x", N, INT64),), (store("A", Var("x"), f32(0)),))), "x has no value"),
        (one(Alloc(local("t", J, space="local"))), "j has no value"),
    ],
    "every_array_is_declared": [
        (one(store("B", 0, f32(0))), "B is no array in scope"),
        (one(loop("i", 0, N, 1, Alloc(acc)), store("A", 0, load("acc", 0))), "acc is no array in scope"),
        (one(Assign("x", Dim("B", 0), INT64)), "B is no array in scope"),
        (one(store("acc", 0, f32(0)), Alloc(acc)), "acc is no array in scope"),
    ],
    "counter_names_are_unique": [
        (one(loop("i", 0, N, 1), loop("i", 0, N, 1)), "i is the name of two loops"),
        (one(loop("n", 0, N, 1)), "n is the name of two loops or of a parameter"),
        (kernel([A, A]), "two parameters"),
    ],
    "counters_are_written_by_their_loops_only": [
        (one(loop("i", 0, N, 1, Assign("i", N, INT64))), "the counter i is assigned in `i = n`"),
    ],
    "names_mean_one_thing": [
        (one(Assign("A", N, INT64)), "A is an array and a variable"),
        (one(Assign("x", N, INT64), Assign("x", f32(1), FLOAT32)), "x is float32, and int64"),
        (one(Assign("x", N, INT64), store("A", 0, Var("x", FLOAT32))), "x is int64, and float32"),
        (one(If(TRUE, (Alloc(acc),), (Alloc(local("acc", 2, 2)),))), "acc is declared in two ways"),
        (one(Alloc(array("B"))), "in global memory"),
    ],
    "results_are_parameters": [
        (one(returns=("B",)), "'B' is no array parameter"),
        (one(outputs=("n",)), "'n' is no array parameter"),
        (one(returns=(0,)), "0 is no array parameter or scalar result"),
    ],
    "indices_match_rank": [
        (one(store("A", (0, 0), f32(0))), "A of rank 1 has 2 indices"),
        (one(store("A", 0, load("A"))), "A of rank 1 has 0 indices"),
        (one(store("A", (f32(0),), f32(0))), "the index 0.0 is no integer"),
        (one(Assign("x", Dim("A", 1), INT64)), "A has no axis 1"),
    ],
    "blocks_fit_their_arrays": [
        (one(Alloc(local("T", 2, 16, 4)), Pack("T", (), "A", (N,), (0, 1), N, N, 4)), "T holds no blocks"),
        (one(Alloc(local("T", 2, N, 4)), Pack("T", (N,), "A", (N,), (0, 1), N, N, 4)), "T holds no blocks"),
        (one(Alloc(local("T", 16, 4)), Pack("T", (), "A", (N,), (0, 1), N, N, 4)), "A of rank 1 has no such block"),
        (
            one(Alloc(local("T", 2, 16, 4)), MatrixProduct("A", (N,), (0, 0), N, N, "T", (), "T", (), N, 16, True)),
            "A of rank 1 has no such block",
        ),
    ],
    "transposed_stores_are_neighbours": [
        (transposed((ramp(0, 4), 0), (ramp(0, 4), 1), more=(Assign("x", N, INT64),)), "there is more than stores"),
        (transposed((ramp(0, 4), 0), (ramp(4, 4), 1)), "B is stored in no neighbouring places"),
        (transposed((ramp(0, 4), 0)), "1 vectors of 4 lanes are no block"),
        (transposed((0, ramp(0, 4)), (0, ramp(4, 4))), "2 vectors of 4 lanes are no block"),
    ],
    "operations_exist": [
        (one(Assign("x", BinOp("/", N, N, INT64), INT64)), "there is no / of int64"),
        (one(Assign("x", BinOp("@", N, N, INT64), INT64)), "there is no @"),
        (one(Assign("x", op("&", f32(1), f32(1)), FLOAT32)), "there is no & of float32"),
        (one(Assign("x", Compare("<>", N, N, INT64), BOOL)), "no comparison <>"),
        (one(Assign("x", UnaryOp("~", f32(1)), FLOAT32)), "there is no ~ of float32"),
        (one(Assign("x", UnaryOp("not", N), INT64)), "there is no not of int64"),
        (one(Assign("x", Call("zeta", (f32(1),), FLOAT32), FLOAT32)), "there is no zeta"),
        (one(Assign("x", Call("sqrt", (f32(1), f32(1)), FLOAT32), FLOAT32)), "no sqrt of 2 arguments"),
        (one(Assign("x", Call("sqrt", (N,), INT64), INT64)), "sqrt gives no int64"),
        (one(Assign("x", Reduce("-", load("A", ramp(0, 4))), FLOAT32)), "no reduction - of float32x4"),
        (one(Assign("x", Reduce("+", load("A", 0)), FLOAT32)), "no reduction + of float32"),
    ],
    "constants_fit_their_type": [
        (one(Assign("x", Const(1.5, INT64), INT64)), "1.5 is no int64"),
        (one(Assign("x", Const(True, INT64), INT64)), "True is no int64"),
        (one(Assign("x", Const(1, BOOL), BOOL)), "1 is no bool"),
    ],
    "no_expression_is_a_half": [
        (one(store("A", 0, op("+", f32(1), f32(1), H))), "1.0 + 1.0 computes in float16"),
        (kernel([Var("x", H)], Assign("y", Var("x", H), H)), "x computes in float16"),
    ],
    "loads_have_their_arrays_type": [
        (one(store("A", 0, load("A", 0, dtype=FLOAT64))), "A of float32 is loaded as float64"),
        (kernel([array("h", dtype="float16")], store("h", 0, load("h", 0, dtype=FLOAT64))), "loaded as float64"),
    ],
    "tests_are_bool": [
        (one(If(N, ())), "the test is int64, not one bool"),
        (one(While(less(ramp(0, 4), N), ())), "the test is boolx4, not one bool"),
        (one(Assign("x", Select(N, N, N, INT64), INT64)), "n is chosen by, and no bool"),
        (one(Assign("x", BoolOp("and", TRUE, N), BOOL)), "n is no bool"),
        (one(Assign("x", BoolOp("xor", TRUE, TRUE), BOOL)), "there is no xor"),
    ],
    "masks_are_boolean": [
        (one(store("A", 0, f32(0), N)), "the mask n is no bool"),
        (one(store("A", 0, load("A", 0, mask=N))), "the mask n is no bool"),
    ],
    "lanes_agree": [
        (one(store("A", ramp(0, 4), op("+", load("A", ramp(0, 4)), load("A", ramp(0, 8))))), "4 and 8 lanes meet"),
        (one(store("A", ramp(0, 4), load("A", ramp(0, 8)))), "4 and 8 lanes meet"),
        (one(store("A", ramp(0, 4), f32(0), less(ramp(0, 8), N))), "4 and 8 lanes meet"),
        (one(store("A", 0, load("A", ramp(0, 4)))), "lanes are stored to one element"),
        (one(store("A", 0, f32(0), less(ramp(0, 4), N))), "lanes are stored to one element"),
        (one(Assign("x", load("A", ramp(0, 4)), FLOAT32)), "float32x4 is assigned to float32"),
        (one(store("A", ramp(0, 1), f32(0))), "is no ramp"),
        (one(store("A", ramp(0, 4), Broadcast(load("A", ramp(0, 4)), 4))), "is no broadcast"),
        (one(Alloc(local("v", 1, dtype=LANES, space="register")), store("v", 0, load("A", ramp(0, 8)))), "4 and 8"),
    ],
    "vectors_are_kept_in_registers": [
        (one(Alloc(local("v", 1, dtype=LANES))), "v keeps vectors, in local memory"),
        (
            one(Alloc(local("v", 8, dtype=LANES, space="register")), store("v", ramp(0, 4), f32(0))),
            "v keeps vectors, and has a vector index",
        ),
    ],
    "bounds_are_integers": [
        (one(loop("i", f32(0), N, 1)), "the bound 0.0 is float32"),
        (one(loop("i", ramp(0, 4), N, 1)), "the bound ramp(0, 1, 4) is int64x4"),
        (one(loop("i", 0, N, 0)), "the step is zero"),
    ],
    "mappings_nest": [
        (one(loop("i", 0, N, 1, mapping="warp")), "there is no mapping 'warp'"),
        (threads(loop("i", 0, N, 1, mapping="thread.x")), "thread.x is mapped twice"),
        (threads(loop("i", 0, N, 1, mapping="block.x")), "block.x is inside thread.x"),
        (one(work(loop("j", 0, N, 1, mapping="thread.x"))), "thread.x is inside cooperative"),
    ],
    "breaks_are_inside_loops": [
        (one(Break()), "a break is outside loops"),
        (threads(Break()), "a break leaves a thread.x loop"),
        (one(loop("i", 0, N, 1, Return(()), mapping="parallel")), "a return leaves a parallel loop"),
    ],
    "polls_say_where_they_are": [
        (one(Poll(1, ("loop 'i' at {}",), ())), "poll 1 has 0 values for 1 gaps"),
        (one(Poll(1, (), ()), Poll(1, (), ())), "two polls have the same number"),
        (one(Poll(1, (), (), (Return(()),))), "poll 1 does more than to store"),
    ],
    "returns_match_the_results": [
        (one(Return((N,))), "1 values are returned, not 0"),
        (one(Return(()), scalar_results=(INT64,)), "0 values are returned, not 1"),
    ],
    "barriers_are_uniform": [
        (threads(If(less(T, N), (Barrier(),))), "a barrier is where only some threads may come"),
        (threads(If(less(T, N), (Poll(1, (), (), together=True),))), "threads leave together where only some"),
        (threads(loop("i", 0, T, 1, Barrier())), "a barrier is where only some threads may come"),
        (
            threads(Assign("x", op("+", T, N, INT64), INT64), If(less(Var("x"), N), (Barrier(),))),
            "a barrier is where only some threads may come",
        ),
        (
            threads(If(less(T, N), (Assign("x", N, INT64),)), While(less(Var("x"), N), (Barrier(),))),
            "threads part in `while x < n:`",
        ),
        (threads(loop("i", 0, N, 1, If(less(I, T), (Break(),)), Barrier())), "only some threads may leave"),
        (threads(If(less(T, N), (work(),))), "only some threads may share out"),
        (threads(Alloc(tile), work(store("tile", I, Cast(FLOAT32, T)))), "depends on which"),
        (
            threads(work(If(less(I, N), (loop("j", 0, 4, 1, mapping="cooperative"),)))),
            "only some threads may share",
        ),
        (
            threads(Alloc(local("own", 2, dtype=INT64)), If(less(load("own", 0, dtype=INT64), N), (Barrier(),))),
            "a barrier is where only some threads may come",
        ),
        (  # what is assigned late in the loop is read early in the next iteration
            threads(
                Assign("x", N, INT64),
                loop("i", 0, N, 1, If(less(Var("x"), N), (Barrier(),)), Assign("x", T, INT64)),
            ),
            "a barrier is where only some threads may come",
        ),
    ],
    "private_arrays_are_written_by_one_thread": [
        (
            one(Alloc(acc), loop("t", 0, 8, 1, store("acc", 0, f32(0)), mapping="thread.x")),
            "all threads write acc, which each should have for itself, in `acc[0] = 0.0`",
        ),
    ],
    "register_indices_are_counters_and_constants": [
        (one(Alloc(local("acc", N, space="register"))), "acc in register memory has an extent that is no constant"),
        (one(Alloc(local("t", N, space="shared"))), "t in shared memory has an extent that is no constant"),
        (one(Alloc(acc), store("acc", N, f32(0))), "the register index n depends on more than counters"),
        (
            one(Alloc(acc), loop("i", 0, 2, 1, store("acc", op("-", I, Dim("A", 0), INT64), f32(0)))),
            "the register index i - A.shape[0] depends on more",
        ),
    ],
}
CASES = [(rule, made, message) for rule, cases in BROKEN.items() for made, message in cases]
RULES = [*checker.NAMES, *checker.TYPES, *checker.CONTROL]


def test_every_rule_has_a_kernel_that_breaks_it() -> None:
    assert {rule.__name__ for rule in RULES} == BROKEN.keys()


@pytest.mark.parametrize(("rule", "made", "message"), CASES, ids=[f"{rule}-{text}" for rule, _, text in CASES])
def test_a_broken_rule_is_named(rule: str, made: Kernel, message: str) -> None:
    with pytest.raises(InternalError) as caught:
        checker.check(made)
    assert message in str(caught.value)
    found = survey(made)
    (broken,) = (item for item in RULES if item.__name__ == rule)
    assert any(message in sentence for sentence in broken(found)), "and it is this rule that says so"


SOUND = {
    "gemm": gemm("parallel"),
    "staged_gemm": staged_gemm(),
    "a local assigned in one round and read in the next": one(
        loop("i", 0, N, 1, If(less(const(0), I), (store("A", 0, Var("x", FLOAT32)),)), Assign("x", f32(1), FLOAT32))
    ),
    "assigned in either arm": one(
        If(TRUE, (Assign("x", N, INT64),), (Assign("x", N, INT64),)), store("A", Var("x"), f32(0))
    ),
    "a while's own counter": one(While(less(N, const(9)), (Assign("n", op("+", N, N, INT64), INT64),))),
    "arrays of one name in two scopes": one(If(TRUE, (Alloc(acc),), (Alloc(local("acc", 3, space="register")),))),
    "half arrays": kernel([array("h", dtype="float16")], store("h", 0, Cast(H, load("h", 0)))),
    "lanes": one(
        Alloc(local("v", 2, dtype=LANES, space="register")),
        loop("i", 0, 2, 1, store("v", I, load("A", ramp(0, 4), mask=less(ramp(0, 4), N)))),
        Assign("w", load("v", 0, dtype=LANES), LANES),
        store("A", ramp(0, 4), op("+", Var("w", LANES), f32(1)), less(ramp(0, 4), N)),
        Assign("total", Reduce("+", Var("w", LANES)), FLOAT32),
    ),
    "a private array inside its threads": threads(Alloc(acc), store("acc", 0, f32(0))),
    "a shape that mentions another array": kernel([A, Array("B", FLOAT32, (Dim("A", 0), const(3)))]),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_kernels_pass(name: str) -> None:
    checker.check(SOUND[name])


def test_a_sentence_says_where() -> None:
    wrong = Assign("x", Var("y"), INT64, loc=Location("k.py", 3, 8))
    with pytest.raises(InternalError, match=r"f breaks its contract:\n- y has no value in `x = y` at k.py:3:9$"):
        checker.check(one(wrong))


def test_checking_is_quick() -> None:
    made = staged_gemm()
    best = min(_timed(made) for _ in range(5))
    assert best < 0.05, "some ms are meant; this bound only catches what grows out of hand"


def _timed(made: Kernel) -> float:
    start = time.process_time()
    checker.check(made)
    return time.process_time() - start
