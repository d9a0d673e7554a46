"""Libraries with kernels of their own: what they allocate is known from their sources, and nothing of them runs.

::

    stand_ins.py          packages that are not installed, and modules that answer in their place
      │
      ├─ triton.py            launches are passed over; kernel_source.py reads which tensors a kernel may write to
      ├─ flash_attention.py   flash_attn 2 and 3; flash_layers.py has the rest of that package
      ├─ xformers.py          memory-efficient attention
      ├─ bitsandbytes.py      its own Python code for CUDA, above a library that does nothing
      ├─ torchvision.py       how many boxes a detector keeps
      ├─ torchaudio.py        the loss of transducers, and filters
      ├─ apex.py              fused optimizers and norms
      ├─ transformer_engine.py  its own Python code, above a compiled module that allocates and does nothing
      ├─ deepspeed.py         its own Python code, above operators that it would compile
      ├─ megatron.py          what a stage of a pipeline waits for the others
      ├─ brought/             kernels that scripts bring along: custom operators, NVRTC, cupy, extensions, the hub's, tile languages
      └─ LIBRARIES, STAND_INS ──> install()      (phantom/world.py)

To add a library, write a file here and name it below:

1. *It is pure Python or Triton* (Liger, torchao): nothing to do. Try it.
2. *It installs without a GPU, and calls a compiled module from Python* (bitsandbytes): replace the compiled functions by ones that
   take what the real ones take, with ordinary calls of ``torch.empty``, and return what they return. ``install(patches)`` does it
   with ``patches.when_imported``, and ``LIBRARIES`` names the file.
3. *It does not install without a GPU* (flash_attn, apex): add a ``StandIn``. ``MODULES`` of its file fill the modules that scripts
   import; each function allocates what the real one does, keeps for backward what the real one keeps, and calls ``current()``
   first, so that it fails outside a prediction. The docstring of the file says which files of the library the facts are from.
4. *Its kernels are operators of torch, in C++*: ``torch.library.register_fake`` says what they return; a rule in
   ``phantom/kernels`` says what an operator of ATen takes.
"""

from __future__ import annotations

import functools
import importlib

from memfit.phantom.current import CurrentWorld
from memfit.phantom.libraries import stand_ins
from memfit.phantom.libraries.brought import custom_operators, runtime_kernels
from memfit.phantom.libraries.stand_ins import StandIn
from memfit.torch_compat.patches import Patches

__all__ = ["PYTHON_ALONE", "STAND_INS", "StandIn", "install"]

OF_APEX = (
    "amp_C",
    "fused_weight_gradient_mlp_cuda",
    "scaled_upper_triang_masked_softmax_cuda",
    "scaled_masked_softmax_cuda",
    "scaled_softmax_cuda",
    "generic_scaled_masked_softmax_cuda",
)
"""Compiled modules beside the package, which are built with it."""

WITH_OTHER_KERNELS = ("transformer_engine", "xformers")
"""They use flash_attn where it is installed, and kernels of their own or cuDNN's where it is not."""

STAND_INS = (
    StandIn(package="triton", distribution="triton", version="3.6.0", file="triton", is_everywhere=True),
    StandIn(package="flash_attn", distribution="flash_attn", version="2.8.3", file="flash_layers", not_for=WITH_OTHER_KERNELS),
    StandIn(
        package="flash_attn_interface",
        distribution="flash_attn_3",
        version="3.0.0",
        file="flash_attention",
        not_for=WITH_OTHER_KERNELS,
    ),
    StandIn(package="flash_attn_2_cuda", distribution="flash_attn", version="2.8.3", file="flash_attention", instead=True),
    StandIn(package="xformers", distribution="xformers", version="0.0.30", file="xformers"),
    StandIn(package="apex", distribution="apex", version="0.1", file="apex", answers_checks=False),
    *(StandIn(package=name, distribution="apex", version="0.1", file="apex", answers_checks=False) for name in OF_APEX),
    StandIn(
        package="transformer_engine_torch",
        distribution="transformer_engine_torch",
        version="2.16.1",
        file="transformer_engine",
        instead=True,
    ),
    StandIn(package="kernels", distribution="kernels", version="0.11.0", file="brought.hub_kernels", answers_checks=False),
    StandIn(package="cupy", distribution="cupy-cuda13x", version="13.6.0", file="brought.runtime_kernels", answers_checks=False),
    StandIn(package="tilelang", distribution="tilelang", version="0.1.6", file="brought.tile_languages", answers_checks=False),
    StandIn(
        package="cutlass", distribution="nvidia-cutlass-dsl", version="4.2.1", file="brought.tile_languages", answers_checks=False
    ),
    StandIn(package="deepspeed", distribution="deepspeed", version="0.19.8", file="deepspeed", answers_checks=False),
)
"""Packages that are answered for where they are not installed."""

LIBRARIES = {
    "triton": "triton",
    "flash_attn_2_cuda": "flash_attention",
    "xformers": "xformers",
    "bitsandbytes": "bitsandbytes",
    "deepspeed": "deepspeed",
    "megatron": "megatron",
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "kernels": "brought.hub_kernels",
    "transformer_engine": "transformer_engine",
    "torch.utils.cpp_extension": "brought.extensions",
}
"""Packages that are changed where they are installed, and the file here whose ``install`` does it."""


PYTHON_ALONE = {"transformer_engine": "pip install transformer_engine onnxscript nvdlfw-inspect"}
"""Packages that installers of programs leave out without a GPU, and how their Python, which is all that is needed, installs."""


def install(patches: Patches, world: CurrentWorld) -> None:
    """Files about a library are read when a script first looks for it."""
    stand_ins.install(patches, STAND_INS, world)
    custom_operators.install(patches)
    runtime_kernels.install(patches)
    for package, file in LIBRARIES.items():
        patches.before_import(package, functools.partial(_install_file, file, patches))


def _install_file(file: str, patches: Patches) -> None:
    importlib.import_module(f"{__name__}.{file}").install(patches)
