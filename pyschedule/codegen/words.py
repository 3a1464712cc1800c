"""The names that generated CPU code may import: the words of `codegen.simd`, told without importing Numba."""

from __future__ import annotations

from typing import Final

_NUMBA: Final = "njit get_num_threads boolean int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64"

_SIMD: Final = """
    wrapping_add wrapping_multiply wrapping_subtract
    absolute convert floordiv fma library_power maximum minimum mod muladd pmax pmin power select shift_left
    shift_right
    reduce_add reduce_and reduce_maximum reduce_minimum reduce_multiply reduce_or reduce_pmax reduce_pmin reduce_xor
    acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 floor fmod
    gamma hypot isfinite isinf isnan lgamma log log1p log2 log10 remainder sin sinh sqrt tan tanh trunc
    checked_index checked_index_masked
    from_bfloat16 from_float16 to_bfloat16 to_float16
    FewerPasses
    first_to_leave stop_requested
    stay_rolled unroll_by unroll_fully
    keep_busy on_this_thread on_threads
    begins_at_lines dot_products matrix_product pack release_matrix_unit set_up_matrix_unit
    fence prefetch prefetch_for_writing store_masked_streaming store_streaming streams
    gather gather_masked head load load_masked load_strided load_strided_masked load_vector ramp scatter_masked
    scratch splat stack store store_masked store_strided_masked store_transposed stride
"""

NUMBA_NAMES: Final = frozenset(_NUMBA.split())
SIMD_NAMES: Final = frozenset(_SIMD.split())
