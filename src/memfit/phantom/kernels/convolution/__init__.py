"""Convolutions by cuDNN.

::

    rules.py    which layout a convolution runs in, what it copies for that, and the workspace of the kernel that cuDNN chooses
    trials.py   what cuDNN takes while it measures its kernels, under cudnn.benchmark
"""

from memfit.phantom.kernels.convolution.rules import RULES

__all__ = ["RULES"]
