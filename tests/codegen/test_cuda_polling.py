"""Polls in a GPU's machine code: where the request is read, and that the hot loop is as it would be without."""

from __future__ import annotations

import re
from functools import cache

import pytest

from pyschedule import poll, spec, tile
from tests.codegen.test_cuda_machine_code import loops

X, Y = spec("float32[4096]"), spec("float32[4096]")


def recurrences(x, y):
    for i in range(4096):
        for k in range(x.shape[0]):
            y[i] = y[i] * 0.999 + x[k]


def product(A, B, C):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@cache
def hot_loop(every: int | None, arch: str) -> list[str]:
    """The operations of the loop that is most of all multiply-adds."""
    polled = poll(target="cpu")(recurrences) if every is None else poll(every=every)(recurrences)
    lowering = tile(i=128, order="i.0 i.1 k")(polled).lower(X, Y, target=f"cuda:{arch}")
    found = [loop for loop in loops(lowering.sass()) if "FFMA" in loop]
    return max(found, key=lambda loop: (loop.count("FFMA") / len(loop), loop.count("FFMA")))


def reads_request(operations: list[str]) -> bool:
    return any(re.match(r"LDG\.E\.STRONG\.SYS", name) for name in operations)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_hot_loop_of_a_split_is_that_of_no_poll(arch: str) -> None:
    without, split = hot_loop(None, arch), hot_loop(4096, arch)
    assert split.count("FFMA") == without.count("FFMA") >= 4, "unrolled alike"
    assert len(split) <= len(without)
    assert not reads_request(split)
    assert not {"YIELD", "BSSY", "BSYNC"} & set(split)


def test_a_poll_in_every_iteration_keeps_the_loop_rolled() -> None:
    every = hot_loop(1, "sm_90")
    assert every.count("FFMA") == 1
    assert reads_request(every)


def test_the_request_is_read_from_the_hosts_memory_each_time() -> None:
    lowering = tile(i=128, order="i.0 i.1 k")(poll()(recurrences)).lower(X, Y, target="cuda:sm_90")
    assert lowering.ptx().count("ld.relaxed.sys.global.s32") == 2, "once at the start, once in the loop of strips"


def test_threads_that_meet_at_barriers_vote() -> None:
    scheduled = tile(i=(32, 2), j=(32, 2), k=8, stage={"A": "k.0", "B": "k.0"})(poll(every=64)(product))
    arguments = [spec("float32[256, 256]")] * 3
    ptx = scheduled.lower(*arguments, target="cuda:sm_80").ptx()
    votes = re.findall(r"bar(?:rier)?\.(?:cta\.)?red(?:ux)?\.\w*or|barrier\.cta\.red\.or|bar\.red\.or", ptx)
    assert len(votes) == ptx.count("ld.relaxed.sys.global.s32") == 2
