"""Arrays that live on a GPU, as far as a report needs to know."""

from __future__ import annotations

from typing import Any


def on_device(array: Any) -> bool:
    return hasattr(array, "__cuda_array_interface__")


def to_host(array: Any) -> Any:
    """The array as NumPy's; itself where it is one."""
    import numpy as np

    if on_device(array):
        from numba import cuda

        return cuda.as_cuda_array(array).copy_to_host()
    return np.asarray(array)


def synchronize() -> None:
    """Waits until the GPU has done all it was given."""
    from numba import cuda

    cuda.synchronize()
