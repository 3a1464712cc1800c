"""Products, convolution, normalisations: kernels with the public decorators, no more privileged than a user's.

Where PyTorch is imported already they are registered as its custom operators too; `import operators.pytorch` does
so later.
"""

import importlib
import sys

from operators.conv2d import conv2d
from operators.gemm import gemm
from operators.layer_norm import layer_norm
from operators.linear import linear
from operators.matmul import matmul
from operators.rms_norm import rms_norm

__all__ = ["conv2d", "gemm", "layer_norm", "linear", "matmul", "rms_norm"]

if "torch" in sys.modules:
    importlib.import_module("operators.pytorch")
