"""The command line: `pyschedule demo | inspect | bench | tune | doctor`.

Heavy imports happen inside the commands, so that `--help` answers at once, and so that `demo` and `bench` can
start a process with a fair environment before NumPy is loaded.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyschedule.errors import ScheduleError
from pyschedule.report.fairness import is_fair, run_fairly
from pyschedule.report.progress import Progress

if TYPE_CHECKING:
    import pandas

_OPERATORS: Final = ("matmul", "gemm", "linear", "conv2d", "layer_norm", "rms_norm")


class RequestError(Exception):
    """A wrong request; the message says what to do."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong, and where the help is."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}; see '{self.prog} --help'\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; 0 on success, 2 on a wrong request (with one line on standard error)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = _parser()
    options = parser.parse_args(given)
    if options.command is None:
        parser.error("choose a command: demo, inspect, bench, tune or doctor")
    if options.fair and not is_fair():
        sys.stdout.flush()
        return run_fairly(["-m", "pyschedule", *given])
    command: Callable[[argparse.Namespace], None] = options.run
    try:
        command(options)
    except (RequestError, ValueError, TypeError) as error:
        text = _one_line(str(error))
        if "missing " in text and "argument" in text:
            text += '; give "float32[64,64]" for an array, or a number'
        print(f"pyschedule {options.command}: error: {text}", file=sys.stderr)
        return 2
    return 0


def _one_line(message: str) -> str:
    """A message without its lines of carets, on one line."""
    lines = (line.strip() for line in message.splitlines())
    return " ".join(line for line in lines if line.strip("^~ "))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pyschedule", description="Schedules for loop nests in plain Python.")
    parser.set_defaults(fair=False)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    demo = commands.add_parser("demo", help="GEMM step by step, then NumPy: the log and the table")
    demo.add_argument("--size", type=_positive, default=1024, help="rows, columns and depth (default: %(default)s)")
    demo.set_defaults(run=_demo, fair=True)

    inspect = commands.add_parser("inspect", help="what the transforms make of a kernel")
    _add_kernel(inspect)
    inspect.add_argument("--target", help="cpu, cuda or cuda:sm_XY (default: what the kernel would run on)")
    show = inspect.add_mutually_exclusive_group()
    show.add_argument("--verbose", action="store_true", help="how each loop counts, and how often, too")
    show.add_argument("--source", action="store_true", help="the generated Numba source instead")
    show.add_argument("--asm", action="store_true", help="the CPU's assembly instead")
    show.add_argument("--ptx", action="store_true", help="PTX instead")
    show.add_argument("--sass", action="store_true", help="the GPU's machine code instead")
    inspect.set_defaults(run=_inspect)

    bench = commands.add_parser("bench", help="a kernel with less and less of its schedule, timed")
    _add_kernel(bench)
    bench.add_argument("--rounds", type=_positive, default=20, help="calls of each variant (default: %(default)s)")
    bench.add_argument("--csv", type=Path, help="write the table to this file too")
    bench.set_defaults(run=_bench, fair=True)

    tune = commands.add_parser("tune", help="search for faster tile sizes, for a given time")
    _add_kernel(tune)
    tune.add_argument("--seconds", type=_seconds, default=30.0, help="how long to search (default: %(default)g)")
    tune.add_argument("--csv", type=Path, help="write the table to this file too")
    tune.set_defaults(run=_tune)

    doctor = commands.add_parser("doctor", help="versions, CPU, threads, cache and CUDA tools found here")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_kernel(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernel", help="MODULE:KERNEL, FILE.py:KERNEL, or one of " + ", ".join(_OPERATORS))
    parser.add_argument("specs", nargs="*", metavar="ARGUMENT", help='"float32[64,64]" for an array, or a number')


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return number


# ------------------------------------------------------------------------------------------------ commands


def _demo(options: argparse.Namespace) -> None:
    from pyschedule.demo import run

    progress = Progress()
    try:
        run(options.size, progress)
    finally:
        progress.close()


def _inspect(options: argparse.Namespace) -> None:
    import pyschedule

    kernel = _kernel(options.kernel)
    arguments = [_argument(text) for text in options.specs]
    target = options.target or ("cuda" if options.ptx or options.sass else None)
    progress = Progress()
    try:
        progress("lowering")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pyschedule.ScheduleWarning)  # the log says the same
            if not (options.source or options.asm or options.ptx or options.sass):
                options_of = {"target": target, "verbose": options.verbose}
                print(pyschedule.inspect_loop_transforms(kernel, *arguments, **options_of))
                return
            lowering = kernel.lower(*arguments, target=target)
            if options.source:
                print(lowering.source)
            else:
                print(lowering.asm() if options.asm else lowering.ptx() if options.ptx else lowering.sass())
    finally:
        progress.close()


def _bench(options: argparse.Namespace) -> None:
    from pyschedule.report import perf_report
    from pyschedule.report.table import show

    _check_csv(options.csv)
    kernel = _kernel(options.kernel)
    arguments = [_data(_argument(text)) for text in options.specs]
    progress = Progress()
    try:
        frame = perf_report(kernel, *arguments, rounds=options.rounds, progress=progress)
    finally:
        progress.close()
    print(show(frame))
    _write_csv(frame, options.csv)


def _tune(options: argparse.Namespace) -> None:
    from pyschedule.report.table import show
    from pyschedule.tuning import tune

    _check_csv(options.csv)
    kernel = _kernel(options.kernel)
    arguments = [_data(_argument(text)) for text in options.specs]
    progress = Progress()
    try:
        result = tune(kernel, *arguments, seconds=options.seconds, progress=progress)
    finally:
        progress.close()
    frame = result.to_frame()
    print(show(frame))
    ended = {"time": "time is up", "space": "every candidate was tried", "interrupt": "interrupted"}
    found = f"{result.speedup:.2f} times as fast" if result.speedup > 1 else "nothing faster than what it has"
    print(f"\n{ended[result.stopped]}; {found}:", *result.decorators, sep="\n")
    _write_csv(frame, options.csv)


def _check_csv(path: Path | None) -> None:
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise RequestError(f"cannot write {path}: give a file in a folder that exists")


def _write_csv(frame: pandas.DataFrame, path: Path | None) -> None:
    if path is None:
        return
    try:
        frame.to_csv(path, index=False)
    except OSError as error:
        raise RequestError(f"cannot write {path} ({error.strerror}); the table above is complete") from None


def _doctor(options: argparse.Namespace) -> None:
    from pyschedule.report.doctor import facts

    found = facts()
    width = max(map(len, found))
    for name, value in found.items():
        print(f"{name:<{width}}  {value}")


# ------------------------------------------------------------------------------------- kernels and arguments


def _kernel(text: str) -> Any:
    """The kernel or operator that `text` names."""
    module_name, _, name = text.rpartition(":")
    if not module_name:
        if text not in _OPERATORS:
            raise RequestError(f"{text!r} names no kernel; write MODULE:KERNEL, or one of {', '.join(_OPERATORS)}")
        module_name, name = "operators", text
    kernel = getattr(_module(module_name), name, None)
    if kernel is None:
        raise RequestError(f"{module_name} has no {name!r}; name a function that carries the decorators")
    if not hasattr(kernel, "lower"):
        raise RequestError(f"{text} is no kernel; decorate the function with tile, vectorize or unroll")
    return kernel


def _module(name: str) -> Any:
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        raise RequestError(f"there is no file {name}; give the path of a Python file")
    sys.path.insert(0, str(path.parent.resolve() if is_file else Path.cwd()))
    try:
        return _from_file(path) if is_file else importlib.import_module(name)
    except ImportError as error:
        raise RequestError(f"cannot import {name} ({error}); run from its folder, or give FILE.py:KERNEL") from None
    except ScheduleError:
        raise  # says where, and what to write instead
    except Exception as error:
        raise RequestError(f"{name} fails on import: {type(error).__name__}: {error}; mend that first") from None


def _from_file(path: Path) -> Any:
    """The module of a file, even where another of its name (`operators`, `queue`) would be imported instead."""
    name = path.stem
    known = sys.modules.get(name)
    if known is not None or name in sys.stdlib_module_names:
        if Path(getattr(known, "__file__", None) or "").resolve() == path.resolve():
            return known
        name = f"{name}_file"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python module")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _argument(text: str) -> Any:
    """A spec, or a number."""
    import pyschedule

    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return pyschedule.spec(text)


def _data(argument: Any) -> Any:
    """Random data where a spec stands; everything else as it is."""
    import numpy as np

    if not hasattr(argument, "shape"):
        return argument
    generator = np.random.default_rng(0)
    if argument.dtype == "bfloat16":
        import ml_dtypes

        return generator.standard_normal(argument.shape, dtype=np.float32).astype(ml_dtypes.bfloat16)
    dtype = np.dtype(argument.dtype)
    if dtype.kind == "f":
        return generator.standard_normal(argument.shape, dtype=np.float32).astype(dtype)
    return generator.integers(0, 2 if dtype.kind == "b" else 100, argument.shape).astype(dtype)
