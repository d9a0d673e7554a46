"""What runs on the GPU, operator by operator: one ``Rule`` for each operator that CUDA treats differently, a file for each family.

::

    rule.py         Rule: what CUDA runs, what that returns, takes and keeps, and the source of the fact; Registry: finds it
      │
      ├─ attention.py     scaled_dot_product_attention: which kernel is chosen, and the memory of cuDNN's, flash and efficient ones
      ├─ convolution/     convolutions by cuDNN: layouts, workspaces, and what cudnn.benchmark takes
      ├─ recurrent.py     LSTM, GRU, RNN by cuDNN: what they return, keep for backward, and take
      ├─ matmul.py        matrix products: copies of operands, workspaces of cuBLAS and cuBLASLt
      ├─ norm.py          layer, group, RMS and batch norm, SyncBatchNorm
      ├─ activation.py    softmax, log-softmax, SiLU, Mish
      ├─ loss.py          CTC, mean squared error, smooth L1
      ├─ reduction.py     sums, means, extremes, norms (also of lists of tensors, as gradient clipping needs them)
      ├─ sorting.py       sort, topk, unique, randperm, multinomial
      ├─ indexing.py      embeddings, sums by index, scatter, nonzero, one_hot, roll
      ├─ fourier.py       Fourier transforms by cuFFT, complex numbers
      └─ quantization.py  fake quantisation
             │
             └──> RULES ──> install()        gives torch the kernels that CUDA runs     (phantom/world.py)
                       ├──> returns_beside() results without data                       (phantom/tensors/mode.py)
                       ├──> get()            what is taken while an operator runs       (predict/workspaces.py)
                       ├──> library_handles.py     what cuBLAS and cuDNN have kept so far     (predict/workspaces.py)
                       └──> docs/kernels.md  written by docs/generate_kernel_table.py

What only data can tell (``nonzero``, ``unique``, ``.item()``) is answered in ``phantom/values``.
"""

from __future__ import annotations

from typing import Any

from memfit.phantom.kernels import (
    activation,
    attention,
    convolution,
    fourier,
    indexing,
    loss,
    matmul,
    norm,
    quantization,
    recurrent,
    reduction,
    sorting,
)
from memfit.phantom.kernels.rule import Registry, Rule, operator_name
from memfit.phantom.target import Target
from memfit.torch_compat.patches import Patches

__all__ = ["RULES", "Registry", "Rule", "install"]

RULES = Registry()
"""Every rule there is."""

for _family in (
    attention,
    convolution,
    recurrent,
    matmul,
    norm,
    activation,
    loss,
    reduction,
    sorting,
    indexing,
    fourier,
    quantization,
):
    RULES.register(_family.__name__.rpartition(".")[2], _family.RULES)


def install(patches: Patches, target: Target) -> None:
    """Gives operators on the phantom GPU the kernels that they have on CUDA."""
    for operator, rule in RULES.items():
        if rule.runs is not None:
            patches.implement("AutogradPrivateUse1", operator_name(operator), rule.runs(target))
        if rule.is_one_kernel:
            patches.implement("PrivateUse1", operator_name(operator), _never_runs)
    recurrent.install(patches)
    attention.install(patches, target)


def _never_runs(*args: Any) -> Any:
    """The phantom's dispatch mode answers first; but torch does not compose an operator that has a kernel."""
    raise NotImplementedError


__not_compiled__ = True
