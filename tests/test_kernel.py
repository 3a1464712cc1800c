"""The kernel object: what decorating makes, and what can be seen of it."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
import warnings

import numpy as np
import pytest

import pyschedule
from pyschedule import (
    LegalityError,
    ScheduleError,
    ScheduleWarning,
    inspect_loop_transforms,
    nounroll,
    poll,
    spec,
    tile,
    unroll,
    vectorize,
)

N = 3


@vectorize("j")
def scale(x, y, factor=2.0, *, offset: float = 0.0):
    """y = factor * x + offset."""
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = factor * x[i, j] + offset


def plain(x, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = 2 * x[i, j]


def test_a_kernel_presents_itself_as_its_function():
    assert scale.__name__ == "scale"
    assert scale.__doc__ == "y = factor * x + offset."
    assert scale.__module__ == __name__
    assert inspect.signature(scale) == inspect.signature(scale.python)
    assert scale.__wrapped__ is scale.python
    assert "scale" in repr(scale)


def test_python_is_the_undecorated_function():
    assert vectorize("j")(plain).python is plain
    assert tile(i=4)(vectorize("j")(plain)).python is plain


def test_a_kernel_cannot_be_changed():
    for change in (
        lambda: setattr(scale, "x", 1),
        lambda: setattr(scale, "__name__", "y"),
        lambda: delattr(scale, "__doc__"),
    ):
        with pytest.raises(AttributeError, match="'scale' cannot be changed"):
            change()


def test_decorating_a_kernel_makes_another_and_leaves_the_first():
    first = unroll("j", 2)(plain)
    before = first._schedule
    second = tile(i=4)(first)
    assert second is not first
    assert first._schedule is before and len(before.directives) == 1
    assert len(second._schedule.directives) == 2
    x = np.ones((5, 7))
    assert "Tiling" not in inspect_loop_transforms(first, x, x)
    assert "Applied Tiling: i=4" in inspect_loop_transforms(second, x, x)


def test_the_order_of_decorators_does_not_matter():
    x = np.ones((5, 7))
    texts = {
        inspect_loop_transforms(kernel, x, x)
        for kernel in (
            tile(i=4, j=8)(vectorize("j", 4)(unroll("i", 2)(plain))),
            unroll("i", 2)(vectorize("j", 4)(tile(i=4, j=8)(plain))),
            vectorize("j", 4)(tile(i=4, j=8)(unroll("i", 2)(plain))),
        )
    }
    assert len(texts) == 1


def test_every_decorator_has_its_call_forms():
    for decorator in (
        tile(i=4),
        tile(i=(8, 4), j=[16, 8], order="i.0 j.0 i.1 j.1 i.2 j.2", stage={"x": "j.0"}, parallel="i.0"),
        vectorize,
        vectorize(),
        vectorize("j", 8),
        vectorize("j", width=8),
        vectorize(width=8, dtype="half"),
        unroll,
        unroll(),
        unroll("i"),
        unroll("i", 4),
        unroll("i", factor=4),
        unroll(factors=[4, 4]),
        nounroll("j"),
        poll(every=4096),
        poll(),
        tile(i=4, target="cuda", strict=True, strict_math=True),
    ):
        assert decorator(plain).python is plain


def test_a_kernel_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(scale)) is scale
    assert copy.deepcopy(scale) is scale


def test_arguments_go_by_name_and_default():
    x = np.arange(6.0).reshape(2, 3)
    for call in (
        lambda y: scale(x, y),
        lambda y: scale(x, y=y, factor=2.0),
        lambda y: scale(factor=2.0, offset=0.0, y=y, x=x),
    ):
        y = np.zeros((2, 3))
        call(y)
        np.testing.assert_array_equal(y, 2 * x)
    y = np.zeros((2, 3))
    scale(x, y, 3.0, offset=1.0)
    np.testing.assert_array_equal(y, 3 * x + 1)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3, 4), {}), ((np.ones((1, 1)),), {"z": 1}), ((np.ones((1, 1)), np.ones((1, 1))), {"x": 1})],
)
def test_a_call_that_python_would_refuse_is_refused(args, kwargs):
    with pytest.raises(TypeError):
        scale(*args, **kwargs)
    with pytest.raises(TypeError):
        scale.lower(*args, **kwargs)


# ------------------------------------------------------------------------------------------------ lowering


def test_a_lowering_has_every_stage():
    lowering = tile(i=4)(vectorize("j", 4)(plain)).lower(np.ones((5, 7)), np.ones((5, 7)))
    assert list(lowering.stages) == ["source", "tiling", "vectorization", "unroll"]
    assert lowering.target.kind == "cpu"
    lines = [line for line in str(lowering.log).splitlines() if not line.startswith((" ", "- Note "))]
    assert lines == ["[Transform Log]", "- Applied Tiling: i=4", "- Applied Vectorization: width=4 on loop 'j'"]
    frame = lowering.log.to_frame()
    assert list(frame["transform"])[:2] == ["Tiling", "Vectorization"]
    assert "def plain" in lowering.source
    assert (
        lowering.source
        == tile(i=4)(vectorize("j", 4)(plain)).lower(spec("float64[5, 7]"), spec("float64[9, 9]")).source
    )


def test_stages_cannot_be_changed():
    lowering = scale.lower(np.ones((5, 7)), np.ones((5, 7)))
    with pytest.raises(TypeError):
        lowering.stages["unroll"] = None


def test_asm_is_for_the_cpu_and_ptx_for_a_gpu():
    lowering = scale.lower(spec("float32[5, 7]"), spec("float32[5, 7]"))
    assert "\tret" in lowering.asm() and "scale" in lowering.asm()
    for text in (lowering.ptx, lowering.sass, lowering.resources):
        with pytest.raises(TypeError, match="target='cuda'"):
            text()


def test_a_gpu_needs_no_gpu():
    lowering = scale.lower(spec("float32[5, 7]"), spec("float32[5, 7]"), target="cuda:sm_90")
    assert str(lowering.target) == "cuda:sm_90"
    with pytest.raises(TypeError, match="target='cpu'"):
        lowering.asm()


@pytest.mark.parametrize("target", ["gpu", "cuda:90", "cuda:sm_11", 3])
def test_an_unknown_target_is_refused(target):
    with pytest.raises(ScheduleError, match="target"):
        scale.lower(spec("float32[5, 7]"), spec("float32[5, 7]"), target=target)


def test_inspecting_shows_the_log_and_then_the_nest():
    text = inspect_loop_transforms(unroll("i", 2)(plain), np.ones((5, 7)), np.ones((5, 7)))
    log, nest = text.split("\n\n", 1)
    assert log.splitlines()[:2] == ["[Transform Log]", "- Applied Unroll: factors=[2] on loops 'i'"]
    assert "for j in range" in nest


def test_inspecting_needs_a_kernel():
    with pytest.raises(TypeError, match="needs a kernel or an operator, not function"):
        inspect_loop_transforms(plain, np.ones(3))


# ------------------------------------------------------------------------------------------------ warnings


def skipped(**kwargs):
    """A kernel with a request that is well formed and cannot be carried out: a run-time trip count."""
    return unroll("j", **kwargs)(plain)


def test_a_skipped_request_warns_once_a_signature_at_its_decorator():
    kernel = skipped()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            kernel(np.ones((2, 3)), np.ones((2, 3)))
        kernel.lower(np.ones((4, 5)), np.ones((4, 5)))
    assert len(caught) == 1
    warning = caught[0]
    assert warning.category is ScheduleWarning
    assert warning.filename == __file__
    source = inspect.getsourcelines(skipped)
    assert source[1] <= warning.lineno < source[1] + len(source[0])
    text = str(warning.message)
    assert text.startswith(f"{__file__}:{warning.lineno}:12: Skipped Unroll: ")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
    assert len(caught) == 1


def test_a_warning_comes_also_when_the_kernel_comes_from_the_cache():
    for _ in range(2):  # the second kernel finds on disk what the first one left there
        with pytest.warns(ScheduleWarning, match="Skipped Unroll"):
            skipped()(np.ones((2, 3), np.int16), np.ones((2, 3), np.int16))


def test_a_warning_made_an_error_leaves_the_kernel_usable():
    kernel = skipped()
    x, y = np.ones((2, 3)), np.zeros((2, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ScheduleWarning):
            kernel(x, y)
        assert not y.any()
        kernel(x, y)
    np.testing.assert_array_equal(y, 2 * x)


def test_strict_makes_it_an_error_each_time():
    kernel = skipped(strict=True)
    for _ in range(2):
        with pytest.raises(LegalityError, match="Skipped Unroll") as caught:
            kernel(np.ones((2, 3)), np.ones((2, 3)))
        assert caught.value.place.file == __file__


def test_strict_on_any_decorator_holds_for_the_kernel():
    kernel = vectorize("j", strict=True)(skipped())
    with pytest.raises(LegalityError):
        kernel.lower(np.ones((2, 3)), np.ones((2, 3)))


def test_the_environment_makes_it_strict(monkeypatch):
    kernel = skipped()
    monkeypatch.setenv("PYSCHEDULE_STRICT", "1")
    with pytest.raises(LegalityError):
        kernel(np.ones((2, 3)), np.ones((2, 3)))
    monkeypatch.setenv("PYSCHEDULE_STRICT", "0")
    with pytest.warns(ScheduleWarning):
        kernel(np.ones((2, 3)), np.ones((2, 3)))


# ------------------------------------------------------------------------------------------ surroundings


def test_debugging_runs_plain_python(monkeypatch):
    monkeypatch.setenv("PYSCHEDULE_DEBUG", "1")
    kernel = vectorize("j")(plain)
    frames = []

    class Watched(np.ndarray):
        def __setitem__(self, key, value):
            frames.append(sys._getframe(1).f_code)
            super().__setitem__(key, value)

    y = np.zeros((1, 2)).view(Watched)
    kernel(np.ones((1, 2)), y)
    assert frames == [plain.__code__] * 2


def test_importing_is_light():
    heavy = "sympy pandas networkx islpy numba llvmlite dask matplotlib"
    code = f"import sys, pyschedule; print([name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_everything_that_is_promised_can_be_imported():
    for name in pyschedule.__all__:
        assert getattr(pyschedule, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tiles'"):
        pyschedule.tiles  # noqa: B018


def test_perf_report_is_imported_when_it_is_wanted():
    assert callable(pyschedule.perf_report)


def test_debugging_the_block_form_interprets_the_whole_arrays(monkeypatch):
    monkeypatch.setenv("PYSCHEDULE_DEBUG", "1")

    @tile(input_shapes=[(6, 5), (5, None)], tile_shapes=[(2, 5), (5, 2)])
    def block(A_block, B_block):
        C = [[0.0 for _ in range(2)] for _ in range(2)]
        for i in range(2):
            for j in range(2):
                for k in range(5):
                    C[i][j] += A_block[i][k] * B_block[k][j]
        return C

    A, B = np.arange(30.0).reshape(6, 5), np.arange(15.0).reshape(5, 3)
    np.testing.assert_array_equal(block(A, B), A @ B)
    with pytest.raises(ValueError, match="A_block"):
        block(A.T, B)
