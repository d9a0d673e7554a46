"""What a process takes of a card beside its tensors, and how the allocator takes memory: asked of the card itself.

It must come first: a context grows with every kernel that is loaded, and a workspace is kept from its first use on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

from memfit.calibrate.meter import MemoryFacts
from memfit.torch_compat.devices import choose_attention
from memfit.units import MIB

_KERNELS = {
    SDPBackend.CUDNN_ATTENTION: "cudnn",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.MATH: "math",
}


def measure_memory(half: torch.dtype) -> MemoryFacts:
    """Of the current card, in a process that has not used it, and while no other uses it: all that is not free counts."""
    free, usable = torch.cuda.mem_get_info()
    first = usable - free
    rounding, small, large = _allocator_constants()
    workspace = _cublas_workspace()
    _train(half)
    beside = usable - torch.cuda.mem_get_info()[0] - torch.cuda.memory_reserved()
    return MemoryFacts(
        context_bytes=beside,
        first_context_bytes=first,
        cublas_workspace_bytes=workspace,
        attention_kernel=_attention_kernel(half),
        rounding_bytes=rounding,
        small_segment_bytes=small,
        large_segment_bytes=large,
    )


def _allocator_constants() -> tuple[int, int, int]:
    """What the smallest tensor takes, and what is asked of CUDA for small and for larger ones."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    small = torch.empty(1, dtype=torch.uint8, device="cuda")
    rounding, small_segment = torch.cuda.memory_allocated() - before[0], torch.cuda.memory_reserved() - before[1]
    reserved = torch.cuda.memory_reserved()
    large = torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    large_segment = torch.cuda.memory_reserved() - reserved
    del small, large
    torch.cuda.empty_cache()
    return rounding, small_segment, large_segment


def _cublas_workspace() -> int:
    a = torch.ones(64, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    b = torch.mm(a, a)
    kept = torch.cuda.memory_allocated() - before - b.numel() * b.element_size()
    return max(0, kept)


def _attention_kernel(half: torch.dtype) -> str:
    heads = torch.randn(1, 8, 128, 64, device="cuda", dtype=half)
    return _KERNELS.get(SDPBackend(choose_attention(heads, heads, heads)), "unknown")


def _train(half: torch.dtype) -> None:
    """Products, convolutions, attention and an optimizer, forward and backward, so that their kernels and libraries are loaded."""
    images = nn.Sequential(nn.Conv2d(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3)).cuda()
    layers = nn.Sequential(nn.Linear(512, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 512)).cuda()
    stepper = torch.optim.AdamW([*images.parameters(), *layers.parameters()])
    with torch.autocast("cuda", half):
        loss = images(torch.randn(8, 3, 64, 64, device="cuda")).float().mean()
        x = layers(torch.randn(64, 512, device="cuda")).view(1, 8, 64, 64).to(half)
        loss = loss + F.scaled_dot_product_attention(x, x, x).float().mean()
        loss = loss + F.cross_entropy(
            layers(torch.randn(64, 512, device="cuda")).float(), torch.zeros(64, dtype=torch.long, device="cuda")
        )
    loss.backward()
    stepper.step()
    torch.cuda.synchronize()
