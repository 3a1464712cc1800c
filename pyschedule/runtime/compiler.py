"""Generated modules become callable machine code, through Numba and its cache where a directory can be written."""

from __future__ import annotations

import linecache
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyschedule.ir.nodes import Array, Kernel, Poll
from pyschedule.ir.types import element_of
from pyschedule.ir.visitors import contains
from pyschedule.runtime.cache import Entry, default_directory, digest_of, unusable
from pyschedule.runtime.plan import ProgramText
from pyschedule.runtime.warn import logger

Entrance = Callable[..., Any]


#: What this process has compiled, by module and text.  The same machine code must not be loaded twice.
_programs: dict[tuple[str, str], Entrance] = {}


class MachineCacheError(Exception):
    """The module asks for Numba's cache, and there is none that could be used; generate it without."""


def compile_program(
    name: str, variant: str, text: ProgramText, numba_types: tuple[Any, ...], entry: Entry | None
) -> Entrance:
    """The compiled function of a program for arguments of these Numba types.

    With an `entry`, the module is a file there and its machine code is loaded from, or kept, beside it; what is
    damaged is compiled anew.  `MachineCacheError` where the text asks for a cache that Numba cannot place.
    """
    # One module for one set of types: Numba numbers the files of several, and processes that add to the same
    # index at once may then read one another's.
    module_name = f"{name}_{variant}_{digest_of(str(numba_types))[:8]}"
    known = _programs.get((module_name, text.source))
    if known is not None:
        return known
    path = entry.module(module_name, text.source) if entry is not None else None
    if entry is not None and path is None:
        raise MachineCacheError
    try:
        program = _compile(module_name, text, numba_types, path, entry)
    except MachineCacheError:
        raise
    except Exception as error:
        if entry is None or path is None or not _from_machine_cache(path):
            raise
        logger.info("%s: cached machine code cannot be used (%s); it is compiled anew", name, error)
        entry.drop(path.parent / "__pycache__", path.stem)
        program = _compile(module_name, text, numba_types, path, entry)
    _programs[module_name, text.source] = program
    return program


def _compile(
    module_name: str, text: ProgramText, numba_types: tuple[Any, ...], path: Path | None, entry: Entry | None
) -> Entrance:
    began = time.perf_counter()
    module = _load(module_name, text.source, path)
    dispatcher: Any = getattr(module, text.entry)
    kept = None
    if path is not None and entry is not None and dispatcher.stats.cache_path:
        kept = Path(dispatcher.stats.cache_path)
        if not entry.verify(kept, path.stem):
            raise MachineCacheError
    with warnings.catch_warnings():
        # What Numba has to say of generated code is of no use to the one who called the kernel.
        warnings.simplefilter("ignore")
        try:
            dispatcher.compile(numba_types)
        except OSError as error:
            if not dispatcher.signatures:
                raise
            # Compiled, and only not kept: what lies in a read-only directory is of another compiler's making.
            unusable(default_directory(), error)
            kept = None
    took = time.perf_counter() - began
    if kept is not None and dispatcher.stats.cache_hits:
        logger.info("%s: machine code loaded in %.0f ms (cache hit)", module_name, took * 1e3)
    else:
        logger.info("%s: compiled in %.2f s (cache miss)", module_name, took)
        if kept is not None and path is not None and entry is not None:
            entry.seal(kept, path.stem)
    return dispatcher  # type: ignore[no-any-return]


def _from_machine_cache(path: Path) -> bool:
    return any((path.parent / "__pycache__").glob(f"{path.stem}.*.nb?"))


def _load(name: str, source: str, path: Path | None) -> types.ModuleType:
    """Executes a module under a name that is the same in every process (Numba imports it by that name)."""
    from pyschedule.runtime.read_only import GENERATED, look_there_too

    look_there_too()
    unique = f"{GENERATED}{digest_of(source)[:12]}_{name}"
    file = str(path) if path is not None else f"<pyschedule {name}>"
    module = types.ModuleType(unique)
    module.__file__ = file
    if path is None:
        # Tracebacks and debuggers find the text here.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    sys.modules[unique] = module
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except RuntimeError as error:
        del sys.modules[unique]
        if "no locator available" in str(error):
            raise MachineCacheError from error
        raise
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def assembly(kernel: Kernel, text: ProgramText) -> str:
    """The machine code of a program, as text, compiled anew for contiguous arguments or strided ones, as the
    kernel's arrays are declared."""
    import numba

    types_: list[Any] = []
    for param in kernel.params:
        dtype = element_of(param.dtype if isinstance(param, Array) else param.vtype)
        held = numba.uint16 if dtype.is_half else getattr(numba, "boolean" if dtype.kind == "b" else dtype.name)
        if not isinstance(param, Array):
            types_.append(numba.float32 if dtype.is_half else held)
        else:
            types_.append(numba.types.Array(held, param.rank, "C" if param.unit_axis == param.rank - 1 else "A"))
    if contains(kernel.body, Poll):
        types_.append(numba.types.Array(numba.int64, 1, "C"))
    name = f"{kernel.name}_assembly"
    dispatcher: Any = getattr(_load(name, text.source, None), text.entry)
    dispatcher.compile(tuple(types_))
    return "\n".join(dispatcher.inspect_asm().values())


# ------------------------------------------------------------------------------------------------- threads

_launching = threading.RLock()
_layer: str | None = None
_forked = False


def most_threads() -> int:
    """How many threads `usable_threads` can ever say in this process."""
    import numba

    return int(numba.config.NUMBA_NUM_THREADS)


def usable_threads() -> int:
    """How many threads a parallel launch would use now; 1 where threads cannot be used."""
    if _forked:
        return 1
    import numba

    if numba.config.NUMBA_NUM_THREADS == 1:  # no mask may ask for more; get_num_threads takes its time
        return 1
    return numba.get_num_threads()  # type: ignore[no-any-return]


def _threaded(entrance: Entrance) -> Entrance:
    """Marks an entrance that starts threads, as many as Numba says to the thread that enters."""
    entrance.threaded = True  # type: ignore[attr-defined]
    return entrance


def parallel_entrance(dispatcher: Entrance) -> Entrance:
    """The dispatcher, entered by one Python thread at a time where the threading layer demands that."""

    @_threaded
    def launch(*args: Any) -> Any:
        global _layer
        if _layer is not None and _layer != "workqueue":
            return dispatcher(*args)
        with _launching:
            result = dispatcher(*args)
            if _layer is None:
                import numba

                _layer = numba.threading_layer()
            return result

    return launch


def _after_fork() -> None:
    """In the child of a fork: GNU OpenMP cannot be entered again, and another thread may have held the lock."""
    global _forked, _launching
    _launching = threading.RLock()
    _forked = _forked or _layer == "omp"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
