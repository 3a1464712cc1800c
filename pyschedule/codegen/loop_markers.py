"""Loop unrolling asked of NVVM: markers in the generated source become `!llvm.loop` metadata.

Numba has no call that says how a loop is to be unrolled.  A marker, which is an inline assembly that holds
nothing but a comment, stands as the last statement of a loop's body; before NVVM sees the LLVM text, each
marker is taken out and the branch that follows it, the loop's back edge, gets the metadata.

`numba.cuda` offers no hook for this, so `nvvm_hook` replaces `compile_ir` of its NVVM binding for as long as
one compilation lasts.  `KNOWN_VERSIONS` are the releases for which the tests have read the result in machine
code; another release is refused when a program has markers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyschedule.errors import InternalError

KNOWN_VERSIONS: Final = ("0.30.",)
_TAG: Final = "// pyschedule.unroll"
_MARKER = re.compile(r'asm sideeffect "' + _TAG + r'\.(full|disable|count)(?: (\d+))?"')
_BRANCH = re.compile(r"^\s*br ")
_FIRST_METADATA = 910_000
_LOCK = threading.RLock()


def marker_text(unroll: int) -> str:
    """The assembly comment for a `For.unroll` value: -1 full, 1 stay rolled, N > 1 by N."""
    if unroll == -1:
        return f"{_TAG}.full"
    if unroll == 1:
        return f"{_TAG}.disable"
    if unroll > 1:
        return f"{_TAG}.count {unroll}"
    raise InternalError(f"no loop marker for unroll={unroll}")


def marker_name(unroll: int) -> str:
    """The function that generated source calls at the end of the body: `unroll_full()`, `unroll_by_4()`, ..."""
    return {-1: "unroll_full", 1: "stay_rolled"}.get(unroll, f"unroll_by_{unroll}")


def place_markers(text: str) -> str:
    """LLVM text with every marker turned into metadata on the branch that follows it.

    Raises `InternalError` where a marker is followed by no branch, so that a request is never lost silently.
    """
    lines: list[str] = []
    metadata: list[str] = []
    number = _FIRST_METADATA
    pending: tuple[str, str] | None = None
    for line in text.splitlines():
        found = _MARKER.search(line)
        if found:
            if pending is not None:
                raise InternalError("loop markers: two markers before one branch")
            pending = (found[1], f", i32 {found[2]}" if found[2] else "")
            continue
        if pending is not None and _BRANCH.match(line):
            line += f", !llvm.loop !{number}"
            metadata.append(f"!{number} = distinct !{{!{number}, !{number + 1}}}")
            metadata.append(f'!{number + 1} = !{{!"llvm.loop.unroll.{pending[0]}"{pending[1]}}}')
            number += 2
            pending = None
        elif pending is not None and line.startswith("}"):
            raise InternalError("loop markers: a marker was not followed by a branch")
        lines.append(line)
    if pending is not None:
        raise InternalError("loop markers: a marker was not followed by a branch")
    return "\n".join(lines + metadata) + "\n"


@contextmanager
def nvvm_hook(options: dict[str, Any]) -> Iterator[None]:
    """While open, NVVM compilations of `numba.cuda` place markers and get `options` (such as `fma=0`) added.

    One at a time in a process: a second thread waits.
    """
    import numba_cuda
    from numba.cuda.cudadrv import nvvm

    with _LOCK:
        original = nvvm.compile_ir

        def compile_ir(llvmir: str | list[str], **given: Any) -> Any:
            texts = [llvmir] if isinstance(llvmir, str) else llvmir
            marked = any(_TAG in text for text in texts)
            if marked and not numba_cuda.__version__.startswith(KNOWN_VERSIONS):
                raise InternalError(
                    f"loop markers are verified for numba-cuda {', '.join(v + 'x' for v in KNOWN_VERSIONS)}, "
                    f"not {numba_cuda.__version__}; install the pinned release: pip install 'pyschedule[cuda]'"
                )
            return original([place_markers(text) for text in texts] if marked else texts, **given, **options)

        nvvm.compile_ir = compile_ir
        try:
            yield
        finally:
            nvvm.compile_ir = original
