"""PyTorch's custom operators: PyTorch's own checks of a registration, and its results.

They need PyTorch, which no other test does: where it is not installed nothing of `operators.pytorch` is covered
but that the package does not import it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def test_the_package_does_not_import_pytorch():
    code = "import sys, operators; print('torch' in sys.modules)"
    root = Path(__file__).parent.parent.parent
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    return torch


@pytest.fixture(scope="module")
def registered(torch):
    from operators import pytorch

    return pytorch


def samples(torch, grad=False):
    """Calls of each operator: its name, arguments, and the same by PyTorch alone."""

    def normal(*shape):
        return torch.randn(shape, requires_grad=grad)

    functional = torch.nn.functional
    a, b, x, weight, bias = normal(2, 5, 7), normal(7, 9), normal(3, 4, 7), normal(9, 7), normal(9)
    image, filters = normal(1, 3, 8, 9), normal(4, 3, 3, 2)
    return {
        "matmul": ((a, b), lambda: a @ b),
        "gemm": (
            (weight, x[0], bias[:, None], 2.0, 0.5, False, True),
            lambda: 2 * (weight @ x[0].T) + bias[:, None] / 2,
        ),
        "linear": ((x, weight, bias, "gelu"), lambda: functional.gelu(functional.linear(x, weight, bias))),
        "conv2d": (
            (image, filters, bias[:4], [1, 2], [1, 0], [1, 1], 1, "NCHW", "relu"),
            lambda: functional.relu(functional.conv2d(image, filters, bias[:4], (1, 2), (1, 0))),
        ),
        "layer_norm": (
            (x, [4, 7], normal(4, 7).detach() * 0 + 1, None, 1e-5),
            lambda: functional.layer_norm(x, (4, 7)),
        ),
        "rms_norm": ((x, [7]), lambda: functional.rms_norm(x, (7,))),
    }


NAMES = ["matmul", "gemm", "linear", "conv2d", "layer_norm", "rms_norm"]


@pytest.mark.parametrize("name", NAMES)
def test_pytorch_checks_the_registration(torch, registered, name):
    arguments, _ = samples(torch)[name]
    found = torch.library.opcheck(getattr(torch.ops.pyschedule, name).default, arguments)
    assert set(found.values()) == {"SUCCESS"}, found


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_pytorch(torch, registered, name):
    arguments, by_pytorch = samples(torch)[name]
    torch.testing.assert_close(getattr(torch.ops.pyschedule, name)(*arguments), by_pytorch())
    torch.testing.assert_close(getattr(registered, name)(*arguments), by_pytorch())


def test_shapes_without_data(torch, registered):
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops = torch.ops.pyschedule
    with FakeTensorMode():
        x, weight = torch.empty(2, 8, 9, 3), torch.empty(4, 3, 3, 3)
        nhwc = ops.conv2d(x, weight, None, [1, 1], [1, 0, 2, 0], [1, 1], 1, "NHWC")
        assert tuple(nhwc.shape) == (2, 7, 9, 4)
        small = torch.empty(5, 6, dtype=torch.int8)
        product = ops.matmul(small, small.T)
        assert product.dtype == torch.int32 and tuple(product.shape) == (5, 5)
        assert tuple(ops.linear(x, torch.empty(3)).shape) == (2, 8, 9)


def test_strings_and_numbers_for_a_convolution(torch, registered):
    x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 2, 3)
    for padding in ("same", "valid", 1, (1, 0)):
        expected = torch.nn.functional.conv2d(x, weight, padding=padding)
        torch.testing.assert_close(registered.conv2d(x, weight, padding=padding), expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_not_there_is_an_error(torch, registered, name):
    arguments, _ = samples(torch, grad=True)[name]
    result = getattr(torch.ops.pyschedule, name)(*arguments)
    assert result.requires_grad
    with pytest.raises(RuntimeError, match=rf"pyschedule.{name}.*no autograd formula"):
        result.sum().backward()
    with torch.no_grad():
        assert not getattr(torch.ops.pyschedule, name)(*arguments).requires_grad


def test_where_pytorch_was_imported_the_operators_are_registered(torch):
    code = "import torch, operators; print(torch.ops.pyschedule.matmul(torch.ones(2, 3), torch.ones(3, 1)).sum())"
    root = Path(__file__).parent.parent.parent
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "tensor(6.)"
