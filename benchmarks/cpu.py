"""The operators on the CPU beside the libraries that are installed: products, convolutions, normalisations.

    python benchmarks/cpu.py [--rows gemm,dtypes,small,conv,norm,overhead,first] [--only TEXT] [--threads N]
                             [--peers numpy,numba,torch,halide,tvm] [--clock wall|cpu] [--quick]
                             [--write FILE]

Calls of ours and of every peer are interleaved in one process, and the tables show medians.  `pip install -e
'.[peers]'` installs PyTorch, Halide and TVM; what is not installed is left out.  `--write results/NAME` writes
NAME.md, the tables with what was measured where and how, and NAME.csv, the report they were made from.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyschedule.report.fairness import fair_environment, is_fair, run_fairly

if TYPE_CHECKING:
    from peers import Peer
    from peers.problems import Convolution, Normalisation, Product

    from pyschedule.report import Contest, Entry
    from pyschedule.report.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
#: Seconds within which no library's threads wait awake for its next call any more.
_SETTLE = 0.5
#: Tables that say the same with more threads.
ONE_THREAD = ("overhead", "first")
ROWS = ("gemm", "dtypes", "small", "conv", "norm", "overhead", "first")
RULES = """\
Every entry computes the same from the same memory (layouts of its own aside), which begins at multiples of 64
bytes, and is checked against float64 before anything is timed. All run in one process, in turns: a round times a
group of calls of each, as many as take 2 ms, after one call that is not timed where calls are short; the orders of
the rounds are such that each entry follows each other equally often. A number is the median over the rounds.
Results go to arrays that exist where a library lets its caller pass one. Environment variables that choose a
kernel, an instruction set or a cache size for a library are unset, and each has the same number of threads. GFLOP/s
count a multiply-add as two; GB/s count every array once. "/ best" is the time of the fastest peer in the line by
ours: above 1, ours is faster."""

OF_THREADS = """\
With more threads than one: before a group of calls nothing is done until no other thread of the process runs or
waits for a core, for the threads of a library stay awake for its next call (GNU OpenMP's some milliseconds, TVM's
and OpenBLAS's 60 to 100) and would take a core from another one; then three calls are not timed, in which threads
wake up. What says how long they stay awake, and to which cores they are bound, is as it is (OMP_WAIT_POLICY,
GOMP_SPINCOUNT, KMP_BLOCKTIME, OPENBLAS_THREAD_TIMEOUT, TVM_THREAD_POOL_SPIN_COUNT, OMP_PROC_BIND), but TVM does not
bind the thread that calls it (TVM_BIND_THREADS=0), since all others are called from it too."""

CLOCKS = {
    "wall": "the time that passes",
    "cpu": "the time that this process computes, in all its threads, which other programs change less",
}


def main(options: argparse.Namespace) -> None:
    import pandas
    from machine import facts, load, openmp
    from peers import PEERS
    from peers import load as load_peer
    from tables import lines

    from pyschedule import perf_report
    from pyschedule.report.progress import Progress

    progress = Progress()
    peers = {}
    for name in PEERS:
        if name in options.peers:
            progress(f"loading {name}")
            peers[name] = load_peer(name, options.threads)
    progress("measuring what a core can do")
    known = facts()
    progress.close()
    head = [f"- {name}: {text}" for name, text in known.items()]
    head.append(f"- threads: {options.threads} for every library")
    head.append(f"- clock: {CLOCKS[options.clock]}")
    head += [f"- {peer.version}: {peer.done}" for peer in peers.values()]
    head += [f"- {name}: not installed, or not asked for" for name in PEERS if name not in peers]
    rules = f"{RULES}\n\n{OF_THREADS}" if options.threads > 1 else RULES
    print("\n".join(head), "", rules, "", sep="\n", flush=True)

    rounds, seconds = (3, 0.1) if options.quick else (options.rounds, options.seconds)
    started = time.monotonic()
    frames, text = [], []
    for rows in options.rows:
        parts = []
        for contest in contests(rows, options, peers, progress):
            if options.only in contest.shape:
                parts.append(perf_report([contest], rounds=rounds, seconds=seconds, progress=progress))
        if rows == "first":
            parts.append(first_calls(1 if options.quick else 3, progress))
        progress.close()
        if not parts:
            continue
        frame = pandas.concat(parts, ignore_index=True)
        shown = lines(_table(rows), frame)
        print("\n".join(shown), flush=True)
        frames.append(frame)
        text += shown
    last = [f"- load average at the end: {load()}, after {time.monotonic() - started:.0f} s"]
    if options.threads > 1:
        last.insert(0, f"- OpenMP in the process: {openmp()}; Numba's threading layer: {_layer()}")
    print("\n".join(last))
    if options.write and frames:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python benchmarks/cpu.py", *options.given])
        whole = ["# The operators on the CPU beside other libraries", "", f"`{command}`", "", *head]
        whole += [*last, "", rules, "", *text]
        options.write.with_name(options.write.name + ".md").write_text("\n".join(whole).rstrip() + "\n")
        pandas.concat(frames, ignore_index=True).to_csv(
            options.write.with_name(options.write.name + ".csv"), index=False
        )


def _layer() -> str:
    """What runs `parallel=` loops; known once one has run."""
    import numba

    try:
        return str(numba.threading_layer())
    except ValueError:
        return "none was needed"


def _table(rows: str) -> Any:
    from tables import Table

    def gflops(row: Any) -> float:
        return float(row.gflops)

    def microseconds(row: Any) -> float:
        return float(row.time_s * 1e6)

    return {
        "gemm": Table("Products in float32, M x N x K, GFLOP/s", gflops),
        "dtypes": Table("Products in other types, GFLOP/s (integers: GOP/s)", gflops),
        "small": Table("Small products in float32, µs a call", microseconds, 2, apart=True),
        "conv": Table("Convolutions of one image in float32, with a bias, GFLOP/s", gflops),
        "norm": Table(
            "Normalisations in float32, GB/s read and written once",
            lambda row: float(row.gbytes_s),
            note='"/ best" is against the fastest that normalises, "/ copy" against a copy of the array.',
        ),
        "overhead": Table("A call of a tiny product, µs", microseconds, 2, apart=True),
        "first": Table(
            "First call of a product, s",
            lambda row: float(row.time_s),
            3,
            note="After the import, each in a new process: with an empty cache, and with that of the one before.",
        ),
    }[rows]


def contests(
    rows: str, options: argparse.Namespace, peers: dict[str, Peer], progress: Progress
) -> Iterator[Contest]:
    """The contests of one table."""
    from peers.problems import Convolution, Normalisation, Product

    sizes = [
        *((size, size, size) for size in (128, 512, 1000, 1024, 2048)),
        (1, 4096, 4096),
        (3136, 64, 576),
        (127, 509, 1021),
    ]
    if rows == "gemm":
        found: list[Any] = [Product(*size) for size in sizes]
    elif rows == "dtypes":
        found = [Product(1024, 1024, 1024, dtype) for dtype in ("float64", "float16", "bfloat16", "int8")]
    elif rows == "small":
        found = [Product(size, size, size) for size in (8, 16, 24, 32, 48, 64)]
    elif rows == "overhead":
        found = [Product(1, 1, 1)]
    elif rows == "conv":
        found = [
            Convolution(3, 64, 64, 56, padding=1),
            Convolution(3, 256, 256, 14, padding=1),
            Convolution(7, 3, 64, 224, stride=2, padding=3),
            Convolution(3, 256, 512, 56, padding=1),
            Convolution(3, 128, 128, 28, padding=1, groups=128),
            Convolution(1, 256, 64, 56),
        ]
    elif rows == "norm":
        found = [Normalisation(*size) for size in ((1024, 768), (4096, 4096), (32768, 256))]
        found.append(Normalisation(4096, 4096, "rms_norm"))
    else:
        found = []
    for given in found:
        if options.only not in given.shape:
            continue
        progress(f"{rows} {given.shape} {given.dtype}: preparing")
        others: dict[str, Entry] = {}
        for peer in peers.values():
            if isinstance(given, Product):
                floor = getattr(peer, "dispatched", None) if rows == "overhead" else peer.product
                others |= floor(given) if floor else {}
            elif isinstance(given, Convolution):
                others |= peer.convolution(given)
            else:
                others |= peer.normalisation(given)
        yield _contest(given, rows, others, options.threads, options.clock)


def _contest(
    given: Product | Convolution | Normalisation, rows: str, others: dict[str, Entry], threads: int, clock: str
) -> Contest:
    from peers.problems import Convolution, Product

    from pyschedule.report import Contest

    if isinstance(given, Product):
        operator, calls = "matmul", _products(given, rows)
    elif isinstance(given, Convolution):
        operator, calls = "conv2d", _convolutions(given)
    else:
        operator, calls = given.operator, _normalisations(given)
    return Contest(
        operator,
        given.shape,
        given.dtype,
        _own(calls, threads),
        others,
        given.expected,
        getattr(given, "flops", None),
        given.bytes_moved,
        _SETTLE if threads > 1 else 0.0,
        time.process_time if clock == "cpu" else time.perf_counter,
    )


# ------------------------------------------------------------------------------------------------ our own

_Calls = dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]


def _own(calls: _Calls, threads: int) -> dict[str, Entry]:
    """Our calls as entries; with several threads, those of one core too."""
    import numba
    from tables import ONE_CORE

    from pyschedule.report import Entry

    if threads == 1:
        return {name: Entry(call, read) for name, (call, read) in calls.items()}
    entries = {}
    for name, (call, read) in calls.items():
        entries[name] = Entry(call, read, lambda: numba.set_num_threads(threads), threads)
        entries[name + ONE_CORE] = Entry(call, read, lambda: numba.set_num_threads(1))
    return entries


def _as_it_is(result: Any) -> Any:
    return result


def _products(given: Product, rows: str) -> _Calls:
    import operators
    from operators.kernels.products import gemm_kernel

    a, b, out = given.a, given.b, given.out()
    matmul = operators.matmul
    calls: _Calls = {"pyschedule": (lambda: matmul(a, b, out=out), _as_it_is)}
    if rows == "overhead":  # what a user's own kernel costs to call

        def kernel() -> Any:
            gemm_kernel(a, b, out)
            return out

        out.fill(0)
        calls = {
            "pyschedule": calls["pyschedule"],
            "pyschedule, a kernel": (kernel, lambda _: matmul(a, b, out=out)),
        }
    return calls


def _convolutions(given: Convolution) -> _Calls:
    from peers.problems import aligned

    import operators

    x, weight, bias, out = given.x, given.weight, given.bias, given.out()
    x_last = aligned(x.transpose(0, 2, 3, 1))
    out_last = aligned(out.transpose(0, 2, 3, 1))
    conv2d, stride, padding, groups = operators.conv2d, given.stride, given.padding, given.groups

    def first() -> Any:
        return conv2d(x, weight, bias, stride, padding, 1, groups, out=out)

    def last() -> Any:
        return conv2d(x_last, weight, bias, stride, padding, 1, groups, layout="NHWC", out=out_last)

    return {
        "pyschedule NCHW": (first, _as_it_is),
        "pyschedule NHWC": (last, lambda result: result.transpose(0, 3, 1, 2)),
    }


def _normalisations(given: Normalisation) -> _Calls:
    import operators

    x, weight, bias, out, width, eps = given.x, given.weight, given.bias, given.out(), given.width, given.eps
    layer_norm, rms_norm = operators.layer_norm, operators.rms_norm
    if given.operator == "layer_norm":
        return {"pyschedule": (lambda: layer_norm(x, width, weight, bias, eps, out=out), _as_it_is)}
    return {"pyschedule": (lambda: rms_norm(x, width, weight, eps, out=out), _as_it_is)}


# --------------------------------------------------------------------------------------------- first calls

_FIRST = """
import time
import numpy as np
import operators
a = np.ones((256, 256), np.float32)
out = np.empty_like(a)
begin = time.perf_counter()
operators.matmul(a, a, out=out)
print(time.perf_counter() - begin)
assert (out == 256).all()
"""


def first_calls(runs: int, progress: Progress) -> Any:
    """The rows of the table of first calls: medians of processes of their own."""
    import statistics

    import pandas

    from pyschedule.report.rows import COLUMNS

    times: dict[str, list[float]] = {"pyschedule, no cache": [], "pyschedule, from disk": []}
    for number in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            environment = fair_environment() | {"PYSCHEDULE_CACHE_DIR": folder}
            environment.pop("NUMBA_CACHE_DIR", None)
            for name, found in times.items():
                progress(f"first call, {name}, run {number + 1} of {runs}")
                done = subprocess.run(
                    [sys.executable, "-c", _FIRST],
                    env=environment,
                    cwd=ROOT,
                    check=True,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                found.append(float(done.stdout))
    rows = [
        {"operator": "first call of matmul", "shape": "256x256x256", "dtype": "float32", "target": "cpu"}
        | {"variant": name, "time_s": statistics.median(found)}
        for name, found in times.items()
    ]
    return pandas.DataFrame(rows, columns=list(COLUMNS))


# ------------------------------------------------------------------------------------------------ options


def _options(given: list[str]) -> argparse.Namespace:
    from peers import PEERS, is_installed

    def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
        def chosen(text: str) -> list[str]:
            found = text.split(",")
            wrong = [name for name in found if name not in known]
            if wrong:
                raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(known)}")
            return [name for name in known if name in found]

        return chosen

    installed = [name for name in PEERS if is_installed(name)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=names(ROWS), help="the tables (default: all; what one thread does, once)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only shapes that contain this text")
    parser.add_argument("--peers", type=names(tuple(PEERS)), default=installed, help="(default: all installed)")
    parser.add_argument("--threads", type=int, default=1, help="for every library (default: 1)")
    parser.add_argument(
        "--rounds", type=int, help="groups of calls of each entry, at most (25; 15 of more threads)"
    )
    parser.add_argument("--seconds", type=float, help="for each entry of a line, about (1; 0.4 of more threads)")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: where other programs run; one thread")
    parser.add_argument("--quick", action="store_true", help="three rounds: whether it runs, not how fast")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write FILE.md and FILE.csv too")
    options = parser.parse_args(given)
    many = options.threads > 1
    if options.rounds is None:
        options.rounds = 15 if many else 25
    if options.seconds is None:
        options.seconds = 0.4 if many else 1.0
    if options.rows is None:
        options.rows = [name for name in ROWS if not many or name not in ONE_THREAD]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not 1 <= options.threads <= cores:
        parser.error(f"--threads: 1 to {cores}, the cores that this process may use, not {options.threads}")
    if many and options.clock == "cpu":
        parser.error("--clock cpu: it adds up the time of all threads; take it with --threads 1")
    missing = [name for name in options.peers if not is_installed(name)]
    if missing:
        parser.error(f"--peers: {missing[0]} is not installed; pip install -e '.[peers]'")
    options.given = given
    return options


if __name__ == "__main__":
    chosen = _options(sys.argv[1:])
    if not is_fair(chosen.threads):
        raise SystemExit(run_fairly(sys.argv, chosen.threads))
    main(chosen)
