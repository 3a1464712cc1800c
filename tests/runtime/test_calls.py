"""What a call accepts, refuses, and returns."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pyschedule import OverlapError, tile, unroll, vectorize

BF16 = np.dtype(ml_dtypes.bfloat16)


@vectorize("j", 4)
def add(x, y, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[i, j] + y[i, j]


@unroll("i", 2)
def accumulate(x, n, scale):
    total = 0.0
    for i in range(n):
        total += x[i] * scale
    return total


@vectorize
def doubled(x):
    y = np.zeros(x.shape[0], dtype=x.dtype)
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]
    return y


@unroll("i", 4)
def count(n, step):
    """No array at all."""
    found = 0
    for i in range(n):
        if i % step == 0:
            found += 1
    return found, found > 2


@vectorize("i", 4)
def shift(x):
    for i in range(x.shape[0] - 1):
        x[i] = x[i + 1]


def grids(*dtypes, shape=(5, 7)):
    return [(np.arange(np.prod(shape)) % 11).astype(dtype).reshape(shape) for dtype in dtypes]


# ----------------------------------------------------------------------------------------------- layouts


def layouts(array):
    """The same values in other layouts: transposed, sliced, reversed, with a gap, broadcast rows."""
    rows, columns = array.shape
    gap = np.zeros((rows, 2 * columns), array.dtype)
    gap[:, ::2] = array
    wide = np.zeros((rows + 2, columns + 3), array.dtype)
    wide[1:-1, 2:-1] = array
    yield "C", array.copy()
    yield "F", np.asfortranarray(array)
    yield "every other column", gap[:, ::2]
    yield "inside a wider one", wide[1:-1, 2:-1]
    yield "reversed", array[::-1, ::-1].copy()[::-1, ::-1]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "uint16", "int64", "float16", BF16, "bool"])
def test_every_dtype_in_every_layout(dtype):
    if dtype == "bool":
        x, y = (grid > 4 for grid in grids("int64", "int64"))
    else:
        x, y = grids(dtype, dtype)
    expected = np.zeros_like(x)
    add.python(x, y, expected)
    for name, left in layouts(x):
        out = np.zeros_like(x)
        add(left, y, out)
        np.testing.assert_array_equal(out, expected, err_msg=name)
    for name, out in layouts(np.zeros_like(x)):
        add(x, y, out)
        np.testing.assert_array_equal(out, expected, err_msg=name)


def test_empty_arrays_are_no_error():
    for shape in [(0, 0), (0, 4), (4, 0)]:
        x, y, out = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        add(x, y, out)
    assert doubled(np.zeros(0)).shape == (0,)


def test_a_read_only_input_is_fine():
    x, y = grids("float64", "float64")
    x.flags.writeable = False
    out = np.zeros_like(x)
    add(x, np.broadcast_to(y[0], y.shape), out)
    np.testing.assert_array_equal(out, x + y[0])


def test_subclasses_and_memory_maps_are_written_in_place(tmp_path):
    x, y = grids("float32", "float32")
    out = np.memmap(tmp_path / "out", np.float32, "w+", shape=x.shape)
    add(x, y.view(np.matrix), out)
    np.testing.assert_array_equal(np.asarray(out), x + y)


class ExportsDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack_is_viewed_without_a_copy():
    x, y = grids("float32", "float32")
    out = np.zeros_like(x)
    add(x, ExportsDLPack(y), ExportsDLPack(out))
    np.testing.assert_array_equal(out, x + y)


# ----------------------------------------------------------------------------------------------- refusals


def refuses(error, match, *args, kernel=add, outputs=(2,)):
    before = [np.array(args[place]) for place in outputs if isinstance(args[place], np.ndarray)]
    for _ in range(2):  # the second time by what the first one remembered
        with pytest.raises(error, match=match):
            kernel(*args)
    for place, old in zip(outputs, before, strict=False):
        np.testing.assert_array_equal(args[place], old)  # nothing was written


@pytest.mark.parametrize("bad", [[[1.0]], ((1.0,),), 3.0, None, "x", memoryview(b"abc")])
def test_what_is_no_array(bad):
    x, out = grids("float64", "float64")
    refuses(TypeError, "^y: an array is needed, not", x, bad, out)


@pytest.mark.parametrize("dtype", ["complex128", "object", "U3", "S3", "M8[s]", "longdouble", "V4", ">f4", "i4,f4"])
def test_dtypes_that_no_kernel_has(dtype):
    x, out = grids("float64", "float64")
    refuses(TypeError, r"^y: dtype .* is not supported", x, np.zeros(x.shape, dtype), out)


def test_a_masked_array_would_lose_its_mask():
    x, out = grids("float64", "float64")
    refuses(TypeError, "^y: a masked array", x, np.ma.masked_array(x, x > 3), out)


def test_another_rank():
    x, y = grids("float64", "float64")
    refuses(TypeError, "'out'", x, y, np.zeros(7))


@pytest.mark.parametrize("shape", [(4, 7), (5, 6), (0, 7), (5, 0), (7, 5)])
def test_extents_that_disagree_name_the_array_and_both(shape):
    x, out = grids("float64", "float64")
    refuses(ValueError, rf"^y: axis \d has extent {min(shape)}|^y: axis \d", x, np.zeros(shape), out)


def test_a_larger_input_is_fine():
    x, out = grids("float64", "float64")
    add(x, np.ones((9, 9)), out)
    np.testing.assert_array_equal(out, x + 1)


def test_a_read_only_output():
    x, y, out = grids("float64", "float64", "float64")
    out.flags.writeable = False
    refuses(ValueError, "^out: the kernel writes it, and it is read-only", x, y, out)
    refuses(ValueError, "^out: .* read-only", x, y, np.broadcast_to(out[0], x.shape))


def test_unaligned_elements():
    x, y = grids("float64", "float64")
    raw = np.zeros(x.nbytes + 1, np.uint8)
    refuses(ValueError, "^out: its elements are not aligned", x, y, raw[1:].view(np.float64).reshape(x.shape))


def test_an_output_that_overlaps_an_input():
    buffer = np.arange(100.0)
    out, shifted = buffer[:35].reshape(5, 7), buffer[1:36].reshape(5, 7)
    other = np.ones((5, 7))
    refuses(ValueError, "^out: the kernel writes it, and it overlaps x in memory", out, other, out)
    refuses(ValueError, "^out: .* overlaps y in memory", other, shifted, out)
    refuses(ValueError, "^out: .* overlaps x", shifted[::-1], other, out)


def test_arrays_that_only_interleave_do_not_overlap():
    buffer = np.zeros((5, 14))
    buffer[:, ::2] = 3
    add(buffer[:, ::2], buffer[:, ::2], buffer[:, 1::2])
    np.testing.assert_array_equal(buffer[:, 1::2], np.full((5, 7), 6))


def test_inputs_may_be_the_same_array():
    (x,) = grids("float64")
    out = np.zeros_like(x)
    add(x, x, out)
    np.testing.assert_array_equal(out, 2 * x)


def test_an_output_that_overlaps_itself():
    x, y = grids("float64", "float64")
    base = np.zeros(64)
    same_row = np.lib.stride_tricks.as_strided(base, (5, 7), (0, 8))
    sliding = np.lib.stride_tricks.as_strided(base, (5, 7), (8, 8))
    for out in (same_row, sliding):
        refuses(ValueError, "^out: .* its elements overlap in memory", x, y, out)
    apart = np.lib.stride_tricks.as_strided(base, (3, 2), (16, 24))  # elements 0 2 4 and 3 5 7
    add(x, y, apart)
    np.testing.assert_array_equal(apart, (x + y)[:3, :2])


# ------------------------------------------------------------------------------------------------ scalars


@pytest.mark.parametrize(
    "scale", [2, 2.5, True, np.float32(2.5), np.float64(2.5), np.int8(-3), np.float16(0.5), np.bool_(True)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_scalars_of_every_type(scale, dtype):
    x = np.arange(9).astype(dtype)
    result = accumulate(x, 9, scale)
    # A NumPy integer is 64 bits wide inside a kernel.
    expected = accumulate.python(x, 9, np.int64(scale) if isinstance(scale, np.integer) else scale)
    assert type(result) is type(expected)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_a_zero_dimensional_array_is_a_scalar():
    x = np.arange(9.0)
    assert accumulate(x, np.array(9), np.array(2.0, np.float32)) == accumulate.python(x, 9, np.float32(2.0))


@pytest.mark.parametrize(
    "bad", ["2", None, 1j, np.complex64(1), [2.0], np.ones(1), np.datetime64("2020"), object()]
)
def test_what_is_no_number(bad):
    with pytest.raises(TypeError, match="scale"):
        accumulate(np.arange(3.0), 3, bad)


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, 2**100, np.uint64(2**63)])
def test_an_integer_beyond_64_bits(bad):
    for _ in range(2):
        with pytest.raises(OverflowError, match=r"^n: .* does not fit in a 64-bit integer"):
            count(bad, 1)
    assert count(5, 2) == (3, True)  # the same types, within range


def test_a_scalar_beyond_the_array_is_refused_at_every_value():
    x = np.arange(5.0)
    for n in (5, 6, 5, 7):
        if n == 5:
            assert accumulate(x, n, 1.0) == 10
        else:
            with pytest.raises(ValueError, match=r"^x: axis 0 has extent 5"):
                accumulate(x, n, 1.0)


# ------------------------------------------------------------------------------------------------ results


def test_a_kernel_without_arrays():
    for n in (0, 1, 4, 7, 100):
        result, expected = count(n, 3), count.python(n, 3)
        assert result == expected
        assert [type(part) for part in result] == [type(part) for part in expected]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "float16", BF16])
@pytest.mark.parametrize("size", [0, 1, 3, 17])
def test_a_returned_array_is_new_and_of_the_function_s_dtype(dtype, size):
    x = (np.arange(size) % 13).astype(dtype)
    result = doubled(x)
    assert result.dtype == x.dtype and result.shape == x.shape
    np.testing.assert_array_equal(result, doubled.python(x))
    assert doubled(x) is not doubled(x)


def test_an_array_that_is_returned_is_the_very_argument(tmp_path):
    @vectorize("i")
    def fill(x, value):
        for i in range(x.shape[0]):
            x[i] = value
        return x

    plain = np.zeros(5)
    mapped = np.memmap(tmp_path / "x", np.float64, "w+", shape=5)
    for x in (plain, mapped):
        for _ in range(2):
            assert fill(x, 3.0) is x
        assert (x == 3).all()


def test_writing_and_reading_one_argument_in_place():
    x = np.arange(9.0)
    expected = x.copy()
    shift.python(expected)
    shift(x)
    np.testing.assert_array_equal(x, expected)


# ------------------------------------------------------------------------------------------- the block form


@tile(input_shapes=[(16, 24), (24, None)], tile_shapes=[(8, 8), (8, 8)])
@vectorize(width=8, dtype="half")
@unroll(factors=[4, 4])
def block(A_block, B_block):
    C = [[0.0 for _ in range(8)] for _ in range(8)]
    for i in range(8):
        for j in range(8):
            for k in range(8):
                C[i][j] += A_block[i][k] * B_block[k][j]
    return C


@pytest.mark.parametrize("columns", [1, 8, 13])
def test_the_block_form_takes_its_shapes(columns):
    A = (np.arange(16 * 24) % 5).astype(np.float32).reshape(16, 24)
    B = (np.arange(24 * columns) % 7).astype(np.float32).reshape(24, columns)
    np.testing.assert_array_equal(block(A, B), A @ B)


@pytest.mark.parametrize("shape", [(16, 23), (24, 16), (16,), (16, 24, 1)])
def test_the_block_form_refuses_other_shapes_naming_both(shape):
    for _ in range(2):
        with pytest.raises(ValueError) as caught:
            block(np.zeros(shape, np.float32), np.zeros((24, 8), np.float32))
        assert (
            "A_block" in str(caught.value) and "(16, 24)" in str(caught.value) and str(shape) in str(caught.value)
        )


def test_the_block_form_can_be_looked_into_without_arguments():
    fixed = tile(input_shapes=[(16, 24), (24, 8)], tile_shapes=[(8, 8), (8, 8)])(
        vectorize(width=8, dtype="half")(block.python)
    )
    lowering = fixed.lower()
    assert [array.dtype.name for array in lowering.kernel.array_params[:2]] == ["float16", "float16"]
    assert "- Applied Tiling: (8, 8)" in str(lowering.log)
    with pytest.raises(TypeError, match="A_block"):
        block.lower()  # an extent is free


# ----------------------------------------------------------------------------------------------- prepared calls


def test_a_prepared_call_does_what_a_call_does():
    x, y, out = grids("float32", "float32", "float32")
    short = add.prepared(x, y, out)
    assert short is not add
    for begin in (0, 5):
        x[...] = begin
        short(x + 1, y, out)
        np.testing.assert_array_equal(out, begin + 1 + y)
    assert accumulate.prepared(x[0], 3, scale=2.0)(y[0], 2, 0.5) == 0.5 * (y[0, 0] + y[0, 1])
    assert count.prepared(10, 3)(12, 3) == count(12, 3)


def test_a_prepared_call_still_looks_for_overlaps_and_at_values():
    x, y, out = grids("float32", "float32", "float32")
    with pytest.raises(ValueError, match=r"^out: .*overlaps x"):
        add.prepared(x, y, out)(out, y, out)
    with pytest.raises(ValueError, match=r"^x: axis 0"):
        accumulate.prepared(x[0], 3, 1.0)(x[0], 8, 1.0)
    with pytest.raises(ValueError, match=r"^y: axis 0"):
        add.prepared(x, y[:3], out)


def test_arrays_that_own_their_memory_overlap_only_as_one():
    """They are told apart by identity; views, made by the same call or not, by where they lie."""
    x, y, out = (np.ones((4, 6), np.float32) for _ in range(3))
    for call in (add, add.prepared(x, y, out)):
        call(x, y, out)
        with pytest.raises(OverlapError, match=r"^out: .*overlaps y"):
            call(x, out, out)
    assert (out == 2).all()
    below = np.ones((8, 6), np.float32)
    call = add.prepared(x, below[:4], out)
    call(x, below[4:], out)
    with pytest.raises(OverlapError, match=r"^out: .*overlaps y"):
        add(x, below[1:5], below[2:6])
    with pytest.raises(OverlapError, match=r"^out: .*overlaps y"):
        call(x, out[:], out)
    assert (below == 1).all()


def test_what_is_wrong_with_one_array_is_no_overlap_with_another():
    """An operator answers an `OverlapError` with a result made apart: these it must not."""
    x, y, out = grids("float32", "float32", "float32")
    itself = np.lib.stride_tricks.as_strided(np.zeros(64, np.float32), out.shape, (4, 4))
    out.flags.writeable = False
    for wrong, words in ((out, "read-only"), (itself, "elements overlap")):
        with pytest.raises(ValueError, match=rf"^out: .*{words}") as caught:
            add(x, y, wrong)
        assert not isinstance(caught.value, OverlapError)


@pytest.mark.parametrize("odd_first", [False, True])
def test_the_strides_of_an_axis_of_one_element_do_not_matter(odd_first):
    shape = 1, 9 + odd_first  # no call like it is remembered
    usual = grids("float32", "float32", "float32", shape=shape)
    odd = [np.lib.stride_tricks.as_strided(array, shape, (4, 4)) for array in usual]
    assert all(array.flags.c_contiguous and array.strides != usual[0].strides for array in odd)
    for x, y, out in (odd, usual, odd) if odd_first else (usual, odd, usual):
        out[:] = -1
        add(x, y, out)
        assert np.array_equal(usual[2], usual[0] + usual[1])


def test_arrays_of_one_shape_that_lie_otherwise_are_told_apart():
    x, y, out = grids("float32", "float32", "float32", shape=(6, 6))
    wide = np.arange(12 * 18, dtype=np.float32).reshape(12, 18)
    for other in (x.T, wide[:6, :6], wide[::2, ::3], wide[::2, 6:12], x[::-1], x):
        add(other, y, out)
        assert np.array_equal(out, other + y)


def test_what_cannot_be_prepared_is_the_kernel_itself():
    x, y, out = grids("float32", "float32", "float32")
    assert add.prepared(x.view(Other), y, out) is add


class Other(np.ndarray):
    """An array of another class."""
