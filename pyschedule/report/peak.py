"""What this machine's core can do at most: fused multiply-adds and copying, measured once a process."""

from __future__ import annotations

import time
from functools import cache
from typing import Any, Final

from pyschedule.schedule.targets import host

_CHAINS: Final = 12
_ROUNDS: Final = 5


@cache
def fma_gflops(dtype: str) -> float | None:
    """The rate of vector fused multiply-adds on one core, GFLOP/s; `None` for a dtype without such.

    Twelve independent chains in registers: enough to hide the latency of two units of four cycles, and few
    enough for the sixteen registers of AVX2.  Halves are computed in float32, and so is their peak.
    """
    element = {"float32": 4, "float64": 8, "float16": 4, "bfloat16": 4}.get(dtype)
    if element is None:
        return None
    lanes = host().lanes(element)
    burst = _burst(element, lanes)
    steps = 200_000
    burst(1000)
    best = 0.0
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        burst(steps)
        best = max(best, 2.0 * lanes * _CHAINS * steps / (time.perf_counter() - begin))
    return best / 1e9


@cache
def copy_gbytes() -> float:
    """The rate of copying a large array on one core, GB/s, reading and writing counted."""
    import numpy as np

    source = np.ones(1 << 24, np.float64)
    target = np.zeros_like(source)
    best = float("inf")
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return 2 * source.nbytes / best / 1e9


def _burst(element_bytes: int, lanes: int) -> Any:
    """A compiled function of a step count that runs that many steps of all chains."""
    from llvmlite import ir
    from numba import njit, types
    from numba.core import cgutils
    from numba.extending import intrinsic

    scalar = ir.FloatType() if element_bytes == 4 else ir.DoubleType()
    vector = ir.VectorType(scalar, lanes)
    suffix = "f32" if element_bytes == 4 else "f64"

    @intrinsic
    def chains(typing_context: Any, steps: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            fma = cgutils.get_or_insert_function(
                builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes}{suffix}"
            )
            factor = ir.Constant(vector, [0.5] * lanes)
            entry = builder.block
            loop, after = builder.append_basic_block("chains"), builder.append_basic_block("after")
            builder.branch(loop)
            builder.position_at_end(loop)
            step = builder.phi(ir.IntType(64))
            step.add_incoming(ir.Constant(ir.IntType(64), 0), entry)
            values = [builder.phi(vector) for _ in range(_CHAINS)]
            updated = [builder.call(fma, [value, factor, factor]) for value in values]
            following = builder.add(step, ir.Constant(ir.IntType(64), 1))
            for number, (value, new) in enumerate(zip(values, updated, strict=True)):
                value.add_incoming(ir.Constant(vector, [float(number)] * lanes), entry)
                value.add_incoming(new, loop)
            step.add_incoming(following, loop)
            builder.cbranch(builder.icmp_signed("<", following, args[0]), loop, after)
            builder.position_at_end(after)
            total = updated[0]
            for value in updated[1:]:
                total = builder.fadd(total, value)
            first = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
            return first if element_bytes == 8 else builder.fpext(first, ir.DoubleType())

        return types.float64(types.int64), generate

    @njit(nogil=True)
    def burst(steps: Any) -> Any:
        return chains(steps)

    return burst
