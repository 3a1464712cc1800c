"""Arrays of other libraries on the CPU, by DLPack: viewed, never copied, and results of the same kind.

A stand-in speaks DLPack as any library does; PyTorch's own tensors are tested where PyTorch is installed.
"""

from __future__ import annotations

import numpy as np
import pytest

import operators
from tests.operators.accuracy import assert_near

RNG = np.random.default_rng(14)


class Other:
    """An array of another library that shares its memory by DLPack."""

    device = (1, 0)

    def __init__(self, array):
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype.name

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __array_namespace__(self):
        return Other

    @staticmethod
    def from_dlpack(array):
        return Other(np.from_dlpack(array))


class Elsewhere(Other):
    device = (8, 0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_the_result_is_of_the_arguments_kind_and_nothing_is_copied():
    a, b = normal(5, 7), normal(7, 9)
    for _ in range(2):
        result = operators.matmul(Other(a), Other(b))
        assert type(result) is Other
        assert_near(result._array, a.astype(np.float64) @ b)
    out = np.zeros((5, 9), np.float32)
    wrapped = Other(out)
    assert operators.matmul(Other(a), Other(b), out=wrapped) is wrapped
    assert_near(out, a.astype(np.float64) @ b)
    strided = Other(normal(14, 10).T[::2])
    assert_near(
        operators.linear(strided, Other(normal(3, 14) * 0 + 1))._array[:, 0],
        strided._array.astype(np.float64).sum(1),
    )


def test_in_place_and_overlapping_outputs():
    a, c = normal(6, 6), normal(6, 6)
    expected, wrapped = a.astype(np.float64) @ a + c, Other(c)
    assert operators.gemm(Other(a), Other(a), wrapped, out=wrapped) is wrapped
    assert_near(c, expected)
    square = Other(a)
    expected = a.astype(np.float64) @ a
    assert operators.matmul(square, square, out=square) is square
    assert_near(a, expected)


def test_plain_python_gives_back_the_same_kind():
    a = normal(3, 3)
    assert type(operators.matmul.python(Other(a), Other(a))) is Other


def test_kinds_do_not_mix():
    a = normal(3, 3)
    with pytest.raises(TypeError, match=r"^b is an array of NumPy, but a is one of tests"):
        operators.matmul(Other(a), a)
    with pytest.raises(TypeError, match=r"^out is an array of tests"):
        operators.matmul(a, a, out=Other(a))
    with pytest.raises(TypeError, match=r"^a: an array on DLPack's device 8"):
        operators.matmul(Elsewhere(a), Elsewhere(a))


def test_an_output_that_its_library_exports_read_only():
    frozen = np.zeros((3, 3), np.float32)
    view = Other(frozen)
    view.__class__ = ReadOnly
    with pytest.raises(ValueError, match=r"^out: .*read-only"):
        operators.matmul(ReadOnly(normal(3, 3)), ReadOnly(normal(3, 3)), out=view)
    assert not frozen.any()


class ReadOnly(Other):
    """A library whose arrays cannot be changed."""

    def __dlpack__(self, **keywords):
        locked = self._array.view()
        locked.flags.writeable = False
        return locked.__dlpack__(max_version=(1, 0))


# ---------------------------------------------------------------------------------------------------- PyTorch


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_tensors_of_each_dtype(torch, dtype):
    kind = getattr(torch, dtype)
    a, b, bias = torch.randn(5, 7, dtype=kind), torch.randn(7, 9, dtype=kind), torch.randn(9, dtype=kind)
    for _ in range(2):
        result = operators.matmul(a, b)
        assert type(result) is torch.Tensor and result.dtype == kind
        torch.testing.assert_close(result, (a.double() @ b.double()).to(kind))
    out = torch.full((5, 9), float("nan"), dtype=kind)
    assert operators.matmul(a, b, out=out) is out
    torch.testing.assert_close(out, result)
    number = operators.matmul(a[0], b[:, 0])
    assert type(number) is torch.Tensor and number.shape == () and number.dtype == kind
    y = operators.linear(a, b.T, bias, activation="relu")
    torch.testing.assert_close(y, torch.relu(a.double() @ b.double() + bias.double()).to(kind))


def test_tensors_share_their_memory(torch):
    a, b = torch.randn(20, 30)[::2, 5:], torch.randn(40, 25).T
    torch.testing.assert_close(operators.matmul(a, b), a @ b)
    c = torch.randn(10, 40)
    expected = a @ b + c
    assert operators.gemm(a, b, c, out=c) is c
    torch.testing.assert_close(c, expected)
    small = torch.randint(-128, 128, (5, 6), dtype=torch.int8)
    assert operators.matmul(small, small.T).dtype == torch.int32


def test_tensors_that_cannot_be_taken(torch):
    a = torch.randn(3, 3)
    with pytest.raises(RuntimeError, match=r"^b: it requires grad.*torch\.no_grad"):
        operators.matmul(a, torch.randn(3, 3, requires_grad=True))
    with torch.no_grad():
        weight = torch.nn.Parameter(torch.randn(3, 3))
        result = operators.matmul(a, weight)
        assert not result.requires_grad
        torch.testing.assert_close(result, a @ weight)
    with pytest.raises(TypeError, match=r"^b is an array of NumPy, but a is one of PyTorch"):
        operators.matmul(a, a.numpy())
    with pytest.raises(TypeError, match=r"^a: a tensor on meta"):
        operators.matmul(a.to("meta"), a.to("meta"))
    with pytest.raises(TypeError, match=r"^a: NumPy cannot view"):
        operators.matmul(a.to_sparse(), a)
    with pytest.raises(TypeError, match="b is float64, but a is float32"):
        operators.matmul(a, a.double())
