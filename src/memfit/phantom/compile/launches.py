"""Kernels of Triton that a script launches inside compiled code: one operator, which the compiler does not look into.

::

    kernel[grid](x, out, N) ── traced ──> memfit::launch(number of the kernel, [out], [x])     the kernel's source stores to out
                                              └── run ──> Triton's launch on the phantom       (libraries/triton.py)

Torch would have Triton compile the kernel to see what it writes to. Memory is planned alike: buffers that a kernel writes to are
reused in place where nothing else reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from memfit.phantom.libraries.flash_attention import run_backward, run_forward
from memfit.phantom.libraries.kernel_source import written_parameters
from memfit.phantom.libraries.triton import innermost, launch, tune_once
from memfit.torch_compat.compiler import CompilerParts
from memfit.torch_compat.patches import Patches

_kernels: list[Any] = []
"""By number: those that compiled code launches. Compiled code outlives the world in which it was made."""


def install(patches: Patches, parts: CompilerParts, modes: Sequence[Any]) -> None:
    """``modes`` are active while the program runs. In a compiled graph autograd's kernels, which open operators, are not called."""
    for mode in (mode for mode in modes if hasattr(mode, "answer_by")):
        ours = torch.ops.memfit
        for operator, function in ((ours.launch, _launch), (ours.flash_forward, run_forward), (ours.flash_backward, run_backward)):
            mode.answer_by(function, operator.default)
    patches.wrap(parts.kernel_launches, "call_triton_kernel", lambda call: _around(parts))
    if hasattr(parts.repros, "save_graph_repro"):  # with the source of every kernel that was launched
        patches.replace(parts.repros, "save_graph_repro", lambda *args, **kwargs: None)


def _around(parts: CompilerParts) -> Callable[..., Any]:
    def call_triton_kernel(maker: Any, variable: Any, args: Sequence[Any], kwargs: dict[str, Any], tx: Any) -> Any:
        kernel = variable.kernel
        function = innermost(kernel)
        named = dict(zip(innermost_names(kernel), args, strict=False)) | kwargs
        tensors = {name: found for name, value in named.items() if (found := parts.tensor_in(value)) is not None}
        written = written_parameters(function)
        changed = [value for name, value in tensors.items() if written is None or name in written]
        others = [value for name, value in tensors.items() if not (written is None or name in written)]
        if kernel not in _kernels:
            _kernels.append(kernel)
        return parts.traced_call(tx, torch.ops.memfit.launch.default, _kernels.index(kernel), changed, others)

    return call_triton_kernel


def innermost_names(kernel: Any) -> Sequence[str]:
    while not hasattr(kernel, "arg_names"):
        kernel = kernel.fn
    names: Sequence[str] = kernel.arg_names
    return names


def _launch(kernel: int, written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
    launched = _kernels[kernel]
    function = innermost(launched)
    if len(getattr(launched, "configs", ())) > 1:
        tune_once(function.__name__, (kernel, tuple(tensor.shape for tensor in written)))
    launch(function.__name__, function, {f"written{number}": tensor for number, tensor in enumerate([*written, *others])})


run_launch: Any = torch.library.custom_op("memfit::launch", _launch, mutates_args=("written",))
run_launch.register_fake(lambda kernel, written, others: None)
