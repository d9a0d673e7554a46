"""Convolutions by cuDNN.

::

    layouts.py    which layout a convolution runs in, and what torch copies for that
    rules.py      the workspace of the kernel that cuDNN chooses: asked of the library, or by what was measured
    library.py    cuDNN itself, asked about a GPU that is not there
    segments.py   partial sums of Hopper's kernels
    trials.py     what cuDNN takes while it measures its kernels, under cudnn.benchmark
"""

from memfit.phantom.kernels.convolution.rules import RULES

__all__ = ["RULES"]
