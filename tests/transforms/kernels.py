"""Kernels for random schedules: plain Python functions, each with the arguments it takes.

    @case("A:T[m,k] B:T[k,n] C:T[m,n]")
    def gemm(A, B, C): ...

`T` is one of the case's element types, drawn anew for each schedule; extents are expressions of `m`, `n` and
`k`.  Values are such that sums come out exactly in any order: small multiples of 1/8 (of 1/2 for halves; ones,
twos and halves of either sign for arrays marked `*`; small counts, from 0 up, for arrays marked `#`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from pyschedule.errors import ScheduleError
from pyschedule.frontend import build
from pyschedule.frontend.parser import Parsed, parse
from pyschedule.ir.nodes import Kernel
from pyschedule.ir.signature import ArraySpec, ScalarSpec, Signature
from pyschedule.ir.types import WEAK_FLOAT, WEAK_INT
from pyschedule.runtime.lowering import Definition
from pyschedule.schedule.directives import Schedule
from pyschedule.transforms import indexing

FLOATS = ("float32", "float64")
INTEGERS = ("int32", "int64")


@dataclass(frozen=True, slots=True)
class Param:
    """One argument: an array of `extents` (or `None`: a number of type `dtype`)."""

    name: str
    dtype: str
    extents: tuple[str, ...] | None
    values: str = ""  # "*": powers of two; "#": counts

    def argument(self, dtype: str, sizes: dict[str, int], rng: np.random.Generator, rough: bool) -> Any:
        dtype = dtype if self.dtype == "T" else self.dtype
        if self.extents is None:
            return int(rng.integers(0, 6)) if dtype == "int" else float(rng.integers(-8, 9)) / 4
        shape = tuple(int(eval(extent, dict(sizes))) for extent in self.extents)
        if self.values == "#":
            return rng.integers(0, 4, shape).astype(dtype)
        if self.values == "*":
            return rng.choice([1, -1, 2, 0.5] if dtype in FLOATS else [1, -1, 2, 3], shape).astype(dtype)
        if dtype in INTEGERS:
            return rng.integers(-9, 10, shape).astype(dtype)
        if rough:
            return rng.standard_normal(shape).astype(dtype)
        unit = 2 if dtype == "float16" else 8
        return (rng.integers(-2 * unit, 2 * unit + 1, shape) / unit).astype(dtype)

    def spec(self, dtype: str) -> ArraySpec | ScalarSpec:
        if self.extents is None:
            return ScalarSpec(WEAK_INT if self.dtype == "int" else WEAK_FLOAT)
        rank = len(self.extents)
        dtype = dtype if self.dtype == "T" else self.dtype
        return ArraySpec(dtype, (None,) * rank, unit_axis=rank - 1, contiguous=True)


@dataclass(frozen=True, slots=True)
class Case:
    """`exact`: every order of its sums gives the same result."""

    name: str
    function: FunctionType
    params: tuple[Param, ...]
    dtypes: tuple[str, ...]
    exact: bool
    largest: int

    @property
    def parsed(self) -> Parsed:
        return parse(self.function)

    def kernel(self, dtype: str = "float32", *, strict_math: bool = False) -> Kernel:
        """The IR that the front end makes of it."""
        signature = Signature(tuple(param.spec(dtype) for param in self.params))
        return indexing.make_explicit(build.build(self.parsed, signature, None, strict_math).kernel)[0]

    def arguments(self, dtype: str, sizes: dict[str, int], seed: int, *, rough: bool = False) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        sizes = {name: min(size, self.largest) for name, size in sizes.items()}
        return {param.name: param.argument(dtype, sizes, rng, rough) for param in self.params}

    def accepts(self, schedule: Schedule) -> bool:
        """Whether the decorators would take such a schedule, on either target."""
        definition = Definition(self.parsed, schedule)
        try:
            for kind in ("cpu", "cuda"):
                definition.check(kind)
        except ScheduleError:
            return False
        return True


CASES: dict[str, Case] = {}


def case(
    params: str, *dtypes: str, exact: bool = True, largest: int = 99
) -> Callable[[FunctionType], FunctionType]:
    def register(function: FunctionType) -> FunctionType:
        parts = tuple(_param(part) for part in params.split())
        chosen = dtypes or (*FLOATS, "int64")
        CASES[function.__name__] = Case(function.__name__, function, parts, chosen, exact, largest)
        return function

    return register


def _param(text: str) -> Param:
    name, _, rest = text.partition(":")
    dtype, bracket, extents = rest.rstrip("]").partition("[")
    mark = name[-1] if name[-1] in "*#" else ""
    return Param(name.rstrip("*#"), dtype, tuple(extents.split(",")) if bracket else None, mark)


def random_sizes(rng: random.Random) -> dict[str, int]:
    return {name: rng.choice([0, 1, 2, 3, 5, 7, 9, 17]) for name in "mnk"}


# -------------------------------------------------------------------------------------------- dense products


@case("A:T[m,k] B:T[k,n] C:T[m,n]", *FLOATS, *INTEGERS, "float16")
def gemm(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@case("A:T[m,k] B:T[k,n] C:T[m,n]", *FLOATS, "int64", "float16")
def gemm_zeroed(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@case("A:T[m,k] B:T[n,k] C:T[m,n]")
def gemm_scalar(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[0]):
            s = 0
            for k in range(A.shape[1]):
                s += A[i, k] * B[j, k]
            C[i, j] = s


@case("A:T[m,k] B:T[k,n] C:T[m,n] alpha:float beta:float", *FLOATS)
def gemm_scaled(A, B, C, alpha, beta):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = C[i, j] * beta
    for i in range(A.shape[0]):
        for k in range(A.shape[1]):
            for j in range(B.shape[1]):
                C[i, j] += alpha * A[i, k] * B[k, j]


@case("A:T[m,k] B:T[k,m] C:T[m,m]")
def lower_product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@case("A:T[m,k] B:T[n,k] C:T[m,n]")
def strided_products(A, B, C):
    for i in range(A.shape[0] - 1, -1, -2):
        for j in range(0, B.shape[0], 3):
            s = 0
            for k in range(A.shape[1]):
                s += A[i, k] * B[j, k]
            C[i, j] = s


@case("X:T[k,m+2,n+1] W:T[m,k,3,2] Y:T[m,m,n]", *FLOATS, largest=5)
def conv2d(X, W, Y):
    for o in range(W.shape[0]):
        for y in range(Y.shape[1]):
            for x in range(Y.shape[2]):
                for c in range(W.shape[1]):
                    for r in range(W.shape[2]):
                        for s in range(W.shape[3]):
                            Y[o, y, x] += X[c, y + r, x + s] * W[o, c, r, s]


@case("X:T[2*n+6] W:T[3] Y:T[n]")
def strided_window(X, W, Y):
    for i in range(Y.shape[0]):
        for r in range(3):
            Y[i] += X[2 * i + 3 * r] * W[r]


@case("X:T[m,n] Y:T[m,n]", *FLOATS)
def layer_norm(X, Y):
    for i in range(X.shape[0]):
        mean = 0.0
        for j in range(X.shape[1]):
            mean += X[i, j]
        mean = mean / 8
        spread = 0.0
        for j in range(X.shape[1]):
            d = X[i, j] - mean
            spread += d * d
        for j in range(X.shape[1]):
            Y[i, j] = (X[i, j] - mean) * spread


# ------------------------------------------------------------------------------------------------ reductions


@case("A:T[m] s:T[1]", *FLOATS, *INTEGERS, "float16")
def total(A, s):
    for i in range(A.shape[0]):
        s[0] += A[i]


@case("A:T[m,n] s:T[n]", *FLOATS, "int32", "float16")
def column_sums(A, s):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            s[j] += A[i, j]


@case("A:T[m,n] hi:T[m] lo:T[m]")
def row_extrema(A, hi, lo):
    for i in range(A.shape[0]):
        h = hi[i]
        l = lo[i]
        for j in range(A.shape[1]):
            h = max(h, A[i, j])
            if A[i, j] < l:
                l = A[i, j]
        hi[i] = h
        lo[i] = l


@case("A*:T[m] p:T[1]", "float64", *INTEGERS)
def product(A, p):
    p[0] = 1
    for i in range(A.shape[0]):
        p[0] *= A[i]


@case("A:T[m,n] out:T[4]")
def statistics(A, out):
    n = 0
    s = 0.0
    q = 0.0
    top = -1000.0
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            if A[i, j] > 0:
                n += 1
                s += A[i, j]
            q += A[i, j] * A[i, j]
            top = max(top, A[i, j] + 0.0)
    out[0] = n
    if n > 0:
        out[1] = s
    out[2] = q
    out[3] = top


@case("A:T[m,n] s:T[m,3]")
def several_elements(A, s):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            s[i, 0] += A[i, j]
            s[i, 2] += A[i, j] * A[i, j]
            s[i, 1] = max(s[i, 1], A[i, j])


@case("A:T[m] s:T[2]", *FLOATS, "float16")
def two_elements(A, s):
    for i in range(A.shape[0]):
        s[0] += A[i]
        s[1] += A[i] * A[i]


@case("A:T[m,n] B:T[m,n] s:T[m]")
def masked_sums(A, B, s):
    for i in range(A.shape[0]):
        t = s[i]
        for j in range(A.shape[1]):
            if A[i, j] > B[i, j] or j % 3 == 1:
                t += A[i, j]
            elif B[i, j] != 0:
                t -= B[i, j] * 2
        s[i] = t


@case("x:T[m]", "int64", "float64")
def returned_sum(x):
    s = 0
    t = 1
    for i in range(x.shape[0]):
        s += x[i] * x[i]
        t = max(t, x[i])
    return s, t


@case("A#:int64[m] h:T[4]", *INTEGERS, "float32")
def histogram(A, h):
    for i in range(A.shape[0]):
        h[A[i]] += 1


# ---------------------------------------------------------------------------------- parallel loops, conditions


@case("A:T[m,n] C:T[m,n]")
def branches(A, C):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            if A[i, j] > 0.5:
                C[i, j] = A[i, j] + 1
            else:
                C[i, j] = C[i, j] * 2


@case("A:T[m,2*n] C:T[m,n]")
def nested_guards(A, C):
    for i in range(A.shape[0]):
        for j in range(C.shape[1]):
            if i + j < C.shape[1] and i % 3 != 1:
                t = A[i, i + j] * 2
                if t > 1:
                    C[i, j] += t


@case("A:T[m,n] C:T[m,n]")
def branches_in_place(A, C):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            c = C[i, j]
            if A[i, j] > 0.5:
                C[i, j] = A[i, j] + 1
            elif c < 0:
                C[i, j] = c * 2


@case("A:T[m,n] C:T[m,n]")
def skipping(A, C):
    for i in range(A.shape[0]):
        if i % 4 == 2:
            continue
        for j in range(A.shape[1]):
            if A[i, j] < 0:
                continue
            C[i, j] = A[i, j] - C[i, j]


@case("A:T[m,n] B:T[n,m]")
def transposed(A, B):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            B[j, i] = A[i, j]


@case("A:T[m,n+1] C:T[m,n+1] D:T[n+1,m]")
def imperfect(A, C, D):
    for i in range(A.shape[0]):
        t = A[i, 0] * 2
        for j in range(A.shape[1]):
            u = t + A[i, j]
            C[i, j] = u * u
            D[j, i] = u


@case("A:T[10,n] C:T[10,n]")
def downwards(A, C):
    for i in range(9, -1, -4):
        for j in range(A.shape[1] - 1, -1, -1):
            C[i, j] += A[i, j]


@case("A:T[m,n] C:T[m,n]")
def strides(A, C):
    for i in range(1, A.shape[0], 3):
        for j in range(A.shape[1] - 1, -1, -2):
            C[i, j] = A[i, j] + C[i - 1, j]


@case("A:T[n] lut#:int64[n] table:T[4] B:T[n]")
def gathered(A, lut, table, B):
    for i in range(A.shape[0]):
        B[i] = A[A.shape[0] - 1 - i] + table[lut[i]] * (i % 3)


@case("A:T[m,n] tmp:T[n] C:T[m,n]")
def scratch(A, tmp, C):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            tmp[j] = A[i, j] * 2
        for j in range(A.shape[1]):
            C[i, j] = tmp[j] + tmp[A.shape[1] - 1 - j]


@case("A:T[m,n] C:T[m,n]")
def local_array(A, C):
    for i in range(A.shape[0]):
        part = np.zeros(4, dtype=A.dtype)
        for j in range(A.shape[1]):
            part[j % 4] += A[i, j]
        for j in range(A.shape[1]):
            C[i, j] = part[(j + 1) % 4]


@case("A:T[m,n] last:T[2]")
def read_afterwards(A, last):
    t = last[0]
    u = last[1]
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            t = A[i, j] * 2
            u = t + i
    last[0] = t
    last[1] = u


@case("A:T[m,n] out:T[m]")
def carried_around(A, out):
    t = 0.0
    for i in range(A.shape[0]):
        out[i] = t
        for j in range(A.shape[1]):
            t = A[i, j] * 2


@case("A:T[m] B:T[m,n] v:T[n]")
def several_nests(A, B, v):
    for i in range(A.shape[0]):
        A[i] = A[i] * 2
    for i in range(B.shape[0]):
        for j in range(B.shape[1]):
            B[i, j] += A[i]
    for j in range(B.shape[1]):
        for i in range(B.shape[0]):
            v[j] += B[i, j]


@case("A:int32[m,n] B:T[m,n]", "int64", "float64")
def mixed_types(A, B):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            t = A[i, j] // 3 + (A[i, j] & 6)
            B[i, j] = B[i, j] + t * A[i, j] % 5


@case("A:T[n,n] B:T[n,n]")
def banded(A, B):
    for i in range(A.shape[0]):
        for j in range(max(0, i - 2), min(A.shape[0], i + 3)):
            B[i, j] += A[j, i] * 2


@case("A:T[n] B:T[n] n:int")
def offsets(A, B, n):
    for i in range(n, A.shape[0] + n):
        B[i - n] = A[i - n] + (i & 3)


# ------------------------------------------------------------------- elements that are touched sometimes, or never


@case("A:T[m,n] s:T[m*n>0]")
def perhaps_no_element(A, s):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            s[0] += A[i, j]


@case("A:T[m,n] s:T[m]")
def guarded_element(A, s):
    for i in range(s.shape[0]):
        for j in range(A.shape[1]):
            if i > 0:
                s[i - 1] += A[i, j]


@case("A:T[m,n] s:T[m]")
def element_of_the_other_arm(A, s):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            if i < 2:
                A[i, j] = A[i, j] * 2
            else:
                s[i - 2] += A[i, j]


@case("A:T[m,n] s:T[m]")
def element_that_may_not_exist(A, s):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            if A[i, j] > 99:
                s[i + 1] += A[i, j]


@case("A:T[m,n] B:T[m//2] C:T[m//2,n]")
def arm_that_is_never_taken(A, B, C):
    for i in range(A.shape[0]):
        for j in range(C.shape[1]):
            if A[i, j] > 99:
                C[i, j] = A[i, j] + B[i]


@case("A:T[m,n] s:T[m]")
def masked_elements(A, s):
    for i in range(s.shape[0]):
        for j in range(A.shape[1]):
            if A[i, j] > 0:
                s[i] += A[i, j]


@case("A:T[m,n] s:T[n]")
def triangle_of_elements(A, s):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            if j > i or i % 2 == 1:
                s[A.shape[1] - 1 - j] += A[i, j]


@case("A:T[m,n] s:T[m]")
def until_negative(A, s):
    for i in range(s.shape[0]):
        for j in range(A.shape[1]):
            if A[i, j] < 0:
                break
            s[i] += A[i, j]


@case("A:T[m,k] B:T[k*(m>0),n] C:T[m,n]")
def product_of_nothing(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@case("x:T[m,n//2+1] y:T[m+1,n]")
def read_where_it_exists(x, y):
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            if i > 0 and j < x.shape[1]:
                y[i, j] += x[i - 1, j]


@case("A:T[m] p#:int64[1] s:T[4]")
def moving_place(A, p, s):
    for i in range(A.shape[0]):
        s[p[0]] += A[i]
        if i == 3:
            p[0] = 2


# ---------------------------------------------------------------------------------- dependences between iterations


@case("A:T[m+1]")
def shifted(A):
    for i in range(A.shape[0] - 1):
        A[i] = A[i + 1] + 2


@case("A:T[m+1]")
def recurrence(A):
    for i in range(4, A.shape[0]):
        A[i] = A[i - 4] + 2


@case("A:T[m] B:T[m]")
def prefix_sum(A, B):
    s = 0
    for i in range(A.shape[0]):
        s += A[i]
        B[i] = s


@case("A:T[n,n]")
def transposed_in_place(A):
    for i in range(A.shape[0]):
        for j in range(A.shape[0]):
            A[i, j] = A[j, i] + 1


@case("A:T[m+1,n+1]")
def antidiagonal(A):
    for i in range(A.shape[0] - 1):
        for j in range(1, A.shape[1]):
            A[i, j] = A[i + 1, j - 1] + 1


@case("A:T[m] B:T[m]")
def jacobi(A, B):
    for t in range(3):
        for i in range(1, A.shape[0] - 1):
            B[i] = A[i - 1] + A[i] + A[i + 1]
        for i in range(1, A.shape[0] - 1):
            A[i] = B[i] * 2


@case("A:T[m]")
def gauss_seidel(A):
    for t in range(3):
        for i in range(1, A.shape[0] - 1):
            A[i] = A[i - 1] + A[i] + A[i + 1]


@case("U:T[2,m,n]", largest=9)
def heat(U):
    for t in range(3):
        for i in range(1, U.shape[1] - 1):
            for j in range(1, U.shape[2] - 1):
                U[(t + 1) % 2, i, j] = U[t % 2, i - 1, j] + U[t % 2, i, j + 1] - U[t % 2, i, j]


@case("A:T[n,n]", "int64", "float64", exact=False, largest=5)
def elimination(A):
    for k in range(A.shape[0]):
        for i in range(k + 1, A.shape[0]):
            for j in range(k + 1, A.shape[0]):
                A[i, j] = A[i, j] - A[i, k] * A[k, j]


@case("L:T[n,n] B:T[n,m]", "int64", "int32", largest=9)
def triangular_solve(L, B):
    for i in range(L.shape[0]):
        for k in range(i):
            for j in range(B.shape[1]):
                B[i, j] -= L[i, k] * B[k, j]


@case("A:T[m] out:T[2]")
def first_negative(A, out):
    for i in range(A.shape[0]):
        if A[i] < 0:
            out[0] = i
            break
        out[1] += A[i]


@case("A#:T[m] B:T[m]")
def while_loops(A, B):
    i = 0
    while i < A.shape[0]:
        n = A[i]
        while n > 0:
            B[i] += n
            n -= 1
        i += 1


@case("A:T[m] out:T[1]")
def early_return(A, out):
    for i in range(A.shape[0]):
        if A[i] > 1.5:
            out[0] = A[i]
            return
    out[0] = -1
