"""`spec("float32[4, 5]")`: stands for an array where there is none."""

from __future__ import annotations

import pytest

from pyschedule.errors import ScheduleError
from pyschedule.ir.signature import ArraySpec, ScalarSpec, Shaped, Signature, spec
from pyschedule.ir.types import DTYPES, WEAK_FLOAT


@pytest.mark.parametrize(
    ("text", "shape"),
    [("float32[4, 5]", (4, 5)), (" float32 [ 4,5, ] ", (4, 5)), ("float32[7]", (7,)), ("float32[]", ()),
     ("float32[0, 3]", (0, 3))],
)  # fmt: skip
def test_a_spec_is_a_dtype_and_extents(text: str, shape: tuple[int, ...]) -> None:
    assert spec(text) == Shaped("float32", shape)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_has_a_spec(dtype: str) -> None:
    assert spec(f"{dtype}[2]").dtype == dtype


@pytest.mark.parametrize(
    "text",
    [
        "float32",
        "float32[4 5]",
        "float32[,]",
        "float32[4,,5]",
        "float32[-1]",
        "float[4]",
        "float32[n]",
        "",
        "float32[4]x",
        3,
    ],
)
def test_anything_else_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(
        ScheduleError, match=r"spec: .* is not of the form 'dtype\[extent, ...\]' with a dtype among bool,"
    ):
        spec(text)


def test_signatures_are_keys() -> None:
    one = Signature((ArraySpec("float32", (None, 3), 1), ScalarSpec(WEAK_FLOAT)))
    two = Signature((ArraySpec("float32", (None, 3), 1), ScalarSpec(WEAK_FLOAT)))
    assert one == two and hash(one) == hash(two)
    assert ArraySpec("float32", (None, 3)).rank == 2
    assert one != Signature((ArraySpec("float32", (None, 3), 1, divisor=16), ScalarSpec(WEAK_FLOAT)))
