"""Libraries with kernels of their own: what they allocate is known from their sources, and nothing of them runs.

::

    stand_ins.py          packages that are not installed, and modules that answer in their place
      │
      ├─ triton.py            launches are passed over; kernel_source.py reads which tensors a kernel may write to
      ├─ flash_attention.py   flash_attn 2 and 3; flash_layers.py has the rest of that package
      ├─ xformers.py          memory-efficient attention
      ├─ bitsandbytes.py      its own Python code for CUDA, above a library that does nothing
      ├─ apex.py              fused optimizers and norms, DeepSpeed's too
      ├─ custom_operators.py  operators that Python code defines are opened
      ├─ extensions.py        C++ and CUDA that is compiled when a script runs
      └─ LIBRARIES, STAND_INS ──> install()      (phantom/world.py)

To add a library, write a file here and name it below:

1. *It is pure Python or Triton* (Liger, torchao): nothing to do. Try it.
2. *It installs without a GPU, and calls a compiled module from Python* (bitsandbytes): replace the compiled functions by ones that
   take what the real ones take, with ordinary calls of ``torch.empty``, and return what they return. ``install(patches)`` does it
   with ``patches.when_imported``.
3. *It does not install without a GPU* (flash_attn, apex): write a ``StandIn``. Its modules have the functions that scripts import;
   each allocates what the real one does, keeps for backward what the real one keeps, and calls ``current()`` first, so that it
   fails outside a prediction. The docstring of the file says which files of the library the facts are from.
4. *Its kernels are operators of torch, in C++*: ``torch.library.register_fake`` says what they return; a rule in
   ``phantom/kernels`` says what an operator of ATen takes.
"""

from __future__ import annotations

from memfit.phantom.current import CurrentWorld
from memfit.phantom.libraries import apex, bitsandbytes, custom_operators, extensions, flash_layers, stand_ins, triton, xformers
from memfit.phantom.libraries import flash_attention as flash
from memfit.phantom.libraries.stand_ins import StandIn
from memfit.torch_compat.patches import Patches

__all__ = ["STAND_INS", "StandIn", "install"]

STAND_INS = (
    triton.STAND_IN,
    flash_layers.STAND_IN,
    flash.STAND_IN_3,
    flash.COMPILED_STAND_IN,
    xformers.STAND_IN,
    apex.APEX,
    apex.DEEPSPEED,
)
"""Packages that are answered for where they are not installed."""


def install(patches: Patches, world: CurrentWorld) -> None:
    stand_ins.install(patches, STAND_INS, world)
    triton.install(patches)
    flash.install(patches)
    xformers.install(patches)
    bitsandbytes.install(patches)
    apex.install(patches)
    extensions.install(patches)
    custom_operators.install(patches)
