"""Types: NumPy 2's promotion with Python's numbers weak, integers that wrap, halves that are rounded once."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from tests.contract.oracle import BFLOAT16, HALF, RNG, numbers, same
from tests.support import call, on_every_target

WIDTHS = (1, 13)


@vectorize("i", 8)
@unroll("i", 2)
def of_any(x, y, out):
    for i in range(len(x)):
        out[0, i] = x[i] + y[i]
        out[1, i] = x[i] - y[i]
        out[2, i] = x[i] * y[i]
        out[3, i] = max(x[i], y[i])
        out[4, i] = min(x[i], y[i])
        out[5, i] = np.maximum(x[i], y[i])
        out[6, i] = np.minimum(x[i], y[i])
        out[7, i] = abs(x[i])
        out[8, i] = -x[i]
        out[9, i] = x[i] if x[i] < y[i] else y[i] + x[i]
        out[10, i] = x[i] * 3 + 1


@vectorize("i", 8)
def of_integers(x, y, out, quotients):
    for i in range(len(x)):
        out[0, i] = x[i] // y[i]
        out[1, i] = x[i] % y[i]
        out[2, i] = x[i] & y[i]
        out[3, i] = x[i] | y[i]
        out[4, i] = x[i] ^ y[i]
        out[5, i] = ~x[i]
        out[6, i] = x[i] << y[i]
        out[7, i] = x[i] >> y[i]
        out[8, i] = (x[i] < y[i]) + 2 * (x[i] >= y[i]) + 4 * (x[i] != y[i])
        quotients[0, i] = x[i] / y[i]
        quotients[1, i] = x[i] / 3
        quotients[2, i] = x[i] * 0.5


@vectorize("i", 8)
def of_floats(x, y, out):
    for i in range(len(x)):
        out[0, i] = x[i] // y[i]
        out[1, i] = x[i] % y[i]
        out[2, i] = x[i] / y[i]
        out[3, i] = x[i] // 2
        out[4, i] = x[i] % -3
        out[5, i] = 7 // y[i]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint32", "int64", "uint64"])
def test_integers_wrap_and_divide_as_numpys(dtype):
    for n in WIDTHS:
        x, y = numbers(dtype, n), numbers(dtype, n, nonzero=True)
        same(of_any, x, y, np.zeros((11, n), dtype))
        same(of_integers, x, y, np.zeros((9, n), dtype), np.zeros((3, n)))
    ends = np.iinfo(dtype)
    edges = np.array([ends.max, ends.min, 0, 1, 7, ends.max - 1, *([-1, -3] if ends.min else [])], dtype)
    x, y = (side.ravel() for side in np.meshgrid(edges, edges))
    same(of_integers, x, y, np.zeros((9, x.size), dtype), np.zeros((3, x.size)), rtol=0)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16, np.float32, np.float64], ids=str)
def test_floats_divide_as_numpys(dtype):
    for n in WIDTHS:
        same(of_any, numbers(dtype, n), numbers(dtype, n), np.zeros((11, n), dtype), rtol=_close(dtype))
    edges = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.5, -2.5, 1e300, 5e-324]).astype(dtype)
    x, y = (side.ravel() for side in np.meshgrid(edges, edges))
    if dtype is not BFLOAT16:
        same(of_floats, x, y, np.zeros((6, x.size), dtype))


def _close(dtype) -> float:
    return {2: HALF, 4: 1e-6, 8: 1e-14}[np.dtype(dtype).itemsize]


@vectorize("i", 4)
def mixed(x, y, out, truths, scalar):
    first = x[0] + y[0]
    for i in range(len(x)):
        out[0, i] = x[i] + y[i]
        out[1, i] = x[i] * y[i]
        out[2, i] = max(x[i], y[i])
        out[3, i] = np.minimum(x[i], y[i])
        out[4, i] = x[i] + 1
        out[5, i] = x[i] * 1.5
        out[6, i] = x[i] + scalar
        out[7, i] = x[i] if x[i] > 3 else y[i]
        truths[0, i] = x[i] < y[i]
        truths[1, i] = x[i] == y[i]
        truths[2, i] = -1 < x[i] <= 100
        truths[3, i] = not x[i]
        truths[4, i] = x[i] and y[i]
    return first


@pytest.mark.parametrize(
    ("left", "right", "scalar"),
    [
        ("int8", "uint8", 3),
        ("uint32", "int32", 2.5),
        ("int64", "float32", np.float32(1.25)),
        ("float32", "int16", np.float64(2.5)),
        ("uint64", "int64", True),
        ("float32", "float64", np.int64(2)),
        ("bool", "int8", 3),
        ("float16", "int8", np.float16(0.5)),
        ("float16", "int32", 0.5),
        ("float16", "bool", np.float32(0.5)),
    ],
)
def test_mixed_types_promote_as_numpys_and_literals_are_weak(left, right, scalar):
    x, y = (RNG.integers(1, 60, 7).astype(dtype) for dtype in (left, right))
    same(mixed, x, y, np.zeros((8, 7)), np.zeros((5, 7), bool), scalar, rtol=HALF if "float16" in left else 0)


@vectorize("i", 4)
def against_unsigned(x, y, truths, n):
    count = 0
    for i in range(len(x)):
        truths[0, i] = x[i] < y[i]
        truths[1, i] = x[i] <= y[i]
        truths[2, i] = x[i] == y[i]
        truths[3, i] = x[i] != y[i]
        truths[4, i] = x[i] > y[i]
        truths[5, i] = y[i] > n
        truths[6, i] = n >= y[i]
        truths[7, i] = y[i] > i - 2
        truths[8, i] = -5 > y[i]
        if y[i] > x[i]:
            count += 1
    return count


@pytest.mark.parametrize("dtype", ["int64", "int8"])
def test_signed_integers_are_compared_with_unsigned_ones_exactly(dtype):
    ends = np.iinfo(dtype)
    signed = np.array([ends.max, ends.min, 0, 1, -1, min(ends.max, 2**53 + 1)], dtype)
    unsigned = np.array([2**64 - 1, 2**63, 2**63 - 1, 0, 1, 2**53 + 1, 2**53], np.uint64)
    x, y = (side.ravel() for side in np.meshgrid(signed, unsigned))
    for n in (-1, 3):
        same(against_unsigned, x, y, np.zeros((9, x.size), bool), n)


@pytest.mark.parametrize("dtype", ["int64", "int8"])
def test_both_sides_of_such_a_comparison_are_read(dtype):
    """As in Python: an index beyond either side is an error, whatever the other side is."""

    def below(x, y, out):
        for i in range(len(x)):
            out[i] = x[i] < y[i]

    shorter = np.zeros(5, np.uint64)
    with pytest.raises(ValueError, match="y: axis 0 has extent 5, but the loop reads index"):
        vectorize("i", 4)(below)(np.full(6, -1, dtype), shorter, np.zeros(6, bool))


@vectorize("i", 4)
def stored(x, out):
    for i in range(len(x)):
        out[i] = x[i]


@pytest.mark.parametrize("source", ["float64", "float16", "int64", "uint64", "bool"])
@pytest.mark.parametrize("targets", [("cpu",), ("cuda",)], ids=lambda targets: targets[0])
def test_elements_are_stored_as_astype_converts(source, targets):
    from tests.support import call

    if source.startswith("f"):
        x = np.array([0, 1.5, -1.5, 127.9, -128.9, 255.5, 65503.0, -3.99, 0.49999]).astype(source)
    else:
        x = numbers(source, 9)
    for dtype in ("int64", "uint32", "int16", "bool", "float16", BFLOAT16):
        out = np.zeros(len(x), dtype)
        call(stored, x, out, target=targets[0])
        np.testing.assert_array_equal(out, x.astype(dtype), err_msg=f"{source} to {dtype}")


@vectorize("i", 8)
def truths(x, y, out):
    for i in range(len(x)):
        out[0, i] = x[i] and y[i]
        out[1, i] = x[i] or y[i]
        out[2, i] = (x[i] or 5) and (y[i] or 7)
        out[3, i] = not (x[i] and y[i])
        out[4, i] = 0 < x[i] > y[i] != 3
        out[5, i] = (1 if x[i] > 0 else 2) if y[i] > 0 else (3 if x[i] > 0 else 4.5)
        out[6, i] = (x[i] > 0) & (y[i] > 0) | (x[i] < -1)
        out[7, i] = (x[i] > 0) + (y[i] > 0) * 2
        out[8, i] = 1 if (x[i] > 0 and y[i] > 0) or (x[i] < -1 and not y[i] < 0) else 0


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool"])
def test_and_or_and_not_in_lanes(dtype):
    x = np.array([0, 1, -2, 0, 3, 5, 0, -1, 1]).astype(dtype)
    y = np.array([0, 0, 1, 2, -1, 3, 0.5, -0.5, 1]).astype(dtype)
    same(truths, x, y, np.zeros((9, 9)))


@vectorize("i", 4)
def conversions(x, out):
    for i in range(len(x)):
        out[0, i] = int(x[i])
        out[1, i] = float(x[i]) / 3
        out[2, i] = bool(x[i])
        out[3, i] = np.float32(x[i]) * np.float32(0.1)
        out[4, i] = np.int8(np.int64(x[i]) % 100)
        out[5, i] = np.float16(x[i])
        out[6, i] = np.int32(3) * np.int8(50)
        out[7, i] = np.where(x[i] > 0, x[i], -x[i])
        out[8, i] = np.square(x[i])
        out[9, i] = np.float64(x[i]) + np.int16(2)
        out[10, i] = ml_dtypes.bfloat16(x[i])
        out[11, i] = np.bool_(x[i])
        out[12, i] = np.float16(0.1) * 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "int32"])
def test_calls_of_types(dtype):
    same(conversions, (RNG.standard_normal(7) * 30).astype(dtype), np.zeros((13, 7)), rtol=1e-7)


# ------------------------------------------------------------------------------------------------------- scalars


@unroll
def scalars(x, y):
    return x + y, x - y, x * y, x / y, x // y, x % y, -x, abs(y), min(x, y), max(x, y), x < y, (x and y), not x


@pytest.mark.parametrize("pair", [(3, -2), (-7, 3), (2.5, -1.5), (np.float32(2.5), np.float32(-1.5))], ids=str)
def test_scalars_come_back_as_python_gives_them(pair):
    same(scalars, *pair)


@unroll
def bits(x, y):
    return x & y, x | y, x ^ y, x << 2, x >> 1, ~x, x == y


@pytest.mark.parametrize("pair", [(3, -2), (-7, 3)], ids=str)
def test_bits_of_scalars(pair):
    same(bits, *pair)


def test_numpys_integer_scalars_are_64_bits_wide():
    assert bits(np.uint8(200), np.uint8(7))[3] == 800
    assert type(bits(np.int32(7), np.int32(-3))[0]) is np.int64


@vectorize("i", 8)
def started(x, n):
    most = -1
    least = 1000
    kept = n
    where = 0
    listed = [-1, 300]
    for i in range(len(x)):
        if x[i] > most:
            most = x[i]
        least = min(least, x[i])
        kept = max(kept, x[i])
        if x[i] == 3:
            where = i
    if len(x) > 5:
        where = x[5]
        listed[1] = x[4]
    return most, least, kept, where, listed[0], listed[1], max(-7, n), -1 if n > 0 else n


@vectorize("i", 8)
def summed(x, n):
    total = n
    for i in range(len(x)):
        total += x[i]
    return total


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32", "uint64"])
def test_a_python_integer_that_an_element_replaces_keeps_its_value(dtype):
    for n in (0, 1, 19):
        same(started, np.arange(1, n + 1).astype(dtype), -5 if dtype != "uint64" else 5, types=False)
        same(started, np.arange(1, n + 1).astype(dtype), 5, types=False)
    same(summed, np.full(9, 100).astype(dtype), 5)  # a sum has the type of what is added, and wraps


@vectorize("i", 8)
def dot(x, y, out):
    s = 0.0
    for i in range(len(x)):
        s += x[i] * y[i]
    out[0] = s
    return s, x[0] + 1, np.sqrt(x[0])


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=str)
def test_a_sum_of_halves_is_kept_in_float32_and_rounded_once(dtype):
    x, out = np.ones(4096, dtype), np.zeros(1, dtype)
    total, one, root = dot(x, x, out)
    assert out[0] == 4096 == total
    assert type(total) is type(one) is type(root) is np.dtype(dtype).type
    x = np.array([32000] * 4 + [-32000] * 4, dtype)
    assert dot(x, np.ones(8, dtype), out)[0] == 0


def of_constants(x, y):
    for i in range(len(x)):
        y[i] = x[i] * FACTOR + TABLE[1] * SINGLE + TABLE[-1] + LARGE % 7
        if not ABSENT:
            y[i] += np.pi


FACTOR, SINGLE, TABLE, LARGE, ABSENT = 3, np.float32(0.1), (2, 3.5, 7), 1 << 40, False


def test_constants_of_the_module_keep_their_types():
    for dtype in ("float32", "float64"):
        kernel = tile(i=4, strict_math=True)(vectorize("i", 2)(of_constants))
        same(kernel, numbers(dtype, 13), np.zeros(13, dtype))


def past_the_end(x, y, w, o):
    for i in range(x.shape[0]):
        if (x[i] * 3) % 3 == 1:
            o[i] = 1
        if x[i] + 1 < x[i]:
            o[i] += 10
        if (x[i] * 5) // 5 == x[i]:
            o[i] += 100
        if x[i] - y[i] > 0:
            o[i] += 1000
        if x[i] - -3 < x[i]:
            o[i] += 10000
        if x[i] * w > 0:
            o[i] += 100000
        t = y[i] - w
        if t + w == y[i] and t < y[i]:
            o[i] += 1000000


@pytest.mark.parametrize("decorate", [unroll("i", 3), vectorize("i", 4), tile(i=4)])
@on_every_target
def test_results_of_64_bits_wrap_and_no_compiler_takes_it_that_they_do_not(decorate, target):
    ends = [2**62 + 1, 2**63 - 1, 3, 2**62, -(2**63), -(2**63) + 1, -1, 0, -(2**62) - 1, 2**61]
    x = np.array(ends, np.int64)
    for w in (1, -5, 2**62, -(2**63)):
        for y in (x[::-1].copy(), np.roll(x, 3)):
            found, expected = np.zeros(10, np.int64), np.zeros(10, np.int64)
            with np.errstate(all="ignore"):
                past_the_end(x, y, np.int64(w), expected)
            call(decorate(past_the_end), x, y, w, found, target=target)
            assert found.tolist() == expected.tolist()


@on_every_target
def test_a_number_from_outside_wraps_too(target):
    def scrambled(seed, o):
        for i in range(o.shape[0]):
            o[i] = ((seed + i) * 6364136223846793005 + 1442695040888963407) >> 33

    seed, found, expected = 2**61 + 12345, np.zeros(7, np.int64), np.zeros(7, np.int64)
    with np.errstate(all="ignore"):
        scrambled(np.int64(seed), expected)
    call(unroll("i", 2)(scrambled), seed, found, target=target)
    assert found.tolist() == expected.tolist()


def test_the_compiler_of_a_gpu_does_not_decide_what_wraps():
    @tile(i=64)
    def last(x, o):
        for i in range(x.shape[0]):
            if x[i] + 1 < x[i]:
                o[i] = 1

    x = np.zeros(5, np.int64)
    assert "st.global" in last.lower(x, x, target="cuda:sm_80").ptx()  # and has not been found to be unreachable
