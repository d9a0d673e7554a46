"""GPUs by name: how much memory they have, and how much of it a training process can use.

::

    total                   what nvidia-smi says the card has
     └─ usable              what the driver leaves to CUDA: torch.cuda.get_device_properties().total_memory
         ├─ context         taken by the process before and beside its tensors: CUDA, cuBLAS, cuDNN, loaded kernels
         ├─ communicators   taken by NCCL, per process group
         └─ the rest        what PyTorch's allocator can get

Every figure says where it is from. Where reports differ between drivers, the smaller one is taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from memfit.errors import ConfigError
from memfit.units import GIB, MIB

GPUS_PER_NODE: Final = 8
"""Where nothing says how many there are: torchrun's ``LOCAL_WORLD_SIZE`` does."""

H200_CONTEXT: Final = 837 * MIB
"""Measured on an H200 with torch 2.11.0+cu130, as memory in use less memory reserved: 527 to 597 MiB once CUDA is initialised,
751 to 771 MiB after training on one GPU, 821 to 837 MiB under FSDP. The largest of 27 workloads, each alone on the GPU."""

OTHER_CONTEXT: Final = (426 + 240) * MIB
"""426 MiB reported for an RTX 6000 Ada with torch 2.10 (unslothai/unsloth-zoo pull request 1053), beside other reports (287 MB:
pytorch pull request 86509, 400 MB: pytorch issue 109888); and the 240 MiB that training added on the H200, 837 less 597."""

COMMUNICATOR: Final = 688 * MIB
"""Reported for groups of three and more A100, 544 MiB for two (NVIDIA/nccl issue 964). Measured on an H200: 556 MiB for the first
group of one, 390 MiB for each further one. It grows with the channels that NCCL opens, not with the number of ranks, and with the
collectives: all-to-all took 3.3 GB on 8 H100 (nccl issue 1685)."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A kind of GPU."""

    name: str
    total_bytes: int
    """What ``nvidia-smi`` says it has."""
    usable_bytes: int
    """What the driver leaves to CUDA."""
    arch: str
    """``sm_90``, or what AMD calls it."""
    num_sms: int
    """Streaming multiprocessors; compute units of an AMD GPU."""
    l2_cache_bytes: int
    """Compiled kernels are timed with a buffer of this size. The H200's was seen in measured runs, those of the others are from
    NVIDIA's and AMD's descriptions of their architectures."""
    source: str
    """Where ``usable_bytes`` is from."""
    context_bytes: int = OTHER_CONTEXT
    communicator_bytes: int = COMMUNICATOR
    """Per process group."""
    caveat: str = ""
    """What makes its figures less sure than others."""

    def capacity(self, num_process_groups: int = 0) -> int:
        """The bytes that PyTorch's allocator can get."""
        return max(0, self.usable_bytes - self.context_bytes - num_process_groups * self.communicator_bytes)


GPUS: Final = (
    Gpu(
        name="T4",
        total_bytes=15360 * MIB,
        usable_bytes=14930 * MIB,
        arch="sm_75",
        num_sms=40,
        l2_cache_bytes=4 * MIB,
        source="the smallest of the total_memory that public logs print for it, 14930 to 15109 MiB",
    ),
    Gpu(
        name="V100-16GB",
        total_bytes=16384 * MIB,
        usable_bytes=16130 * MIB,
        arch="sm_70",
        num_sms=80,
        l2_cache_bytes=6 * MIB,
        source="the smallest of the total_memory that public logs print for it, 16130 to 16160 MiB",
    ),
    Gpu(
        name="L4",
        total_bytes=23034 * MIB,
        usable_bytes=round(21.95 * GIB),
        arch="sm_89",
        num_sms=58,
        l2_cache_bytes=48 * MIB,
        source="out-of-memory messages that name 21.95 GiB",
        caveat="the messages do not name the card; their figure is 556 MiB below its 23034 MiB, like other cards with ECC",
    ),
    Gpu(
        name="A10",
        total_bytes=23028 * MIB,
        usable_bytes=round(21.99 * GIB),
        arch="sm_86",
        num_sms=72,
        l2_cache_bytes=6 * MIB,
        source="github.com/zai-org/CogVLM issue 236; an A10G has 22723 MiB",
    ),
    Gpu(
        name="RTX-4090",
        total_bytes=24564 * MIB,
        usable_bytes=round(23.61 * GIB),
        arch="sm_89",
        num_sms=128,
        l2_cache_bytes=72 * MIB,
        source="github.com/pinokiofactory/flux-webui issue 11; 23.64 GiB in ali-vilab/VGen issue 104",
        caveat="a display takes some of it",
    ),
    Gpu(
        name="RTX-3090",
        total_bytes=24576 * MIB,
        usable_bytes=24259 * MIB,
        arch="sm_86",
        num_sms=82,
        l2_cache_bytes=6 * MIB,
        source="total_memory in public logs of Linux machines; Windows says 24575 MiB",
        caveat="a display takes some of it",
    ),
    Gpu(
        name="RTX-5090",
        total_bytes=32607 * MIB,
        usable_bytes=round(31.36 * GIB),
        arch="sm_120",
        num_sms=170,
        l2_cache_bytes=96 * MIB,
        source="github.com/TrajectoryCrafter/TrajectoryCrafter issue 20; 31.37 GiB in Wan-Video/Wan2.1 issue 465",
        caveat="a display takes some of it",
    ),
    Gpu(
        name="V100-32GB",
        total_bytes=32768 * MIB,
        usable_bytes=round(31.74 * GIB),
        arch="sm_70",
        num_sms=80,
        l2_cache_bytes=6 * MIB,
        source="github.com/haotian-liu/LLaVA issue 812",
    ),
    Gpu(
        name="A100-40GB",
        total_bytes=40960 * MIB,
        usable_bytes=42_405_855_232,
        arch="sm_80",
        num_sms=108,
        l2_cache_bytes=40 * MIB,
        source="deviceQuery in the documentation of Paderborn's PC2; 39.50 GiB in github.com/TianheWu/CoSeR issue 10",
    ),
    Gpu(
        name="L40S",
        total_bytes=46068 * MIB,
        usable_bytes=round(44.40 * GIB),
        arch="sm_89",
        num_sms=142,
        l2_cache_bytes=96 * MIB,
        source="github.com/QwenLM/Qwen3-VL issue 2097, of an L40 with the same memory; 45589 MiB in a log of an L40S",
    ),
    Gpu(
        name="H100-80GB",
        total_bytes=81559 * MIB,
        usable_bytes=round(79.11 * GIB),
        arch="sm_90",
        num_sms=132,
        l2_cache_bytes=50 * MIB,
        source="github.com/vllm-project/vllm issue 27508; older drivers leave 81082 to 81090 MiB",
        context_bytes=H200_CONTEXT,
    ),
    Gpu(
        name="A100-80GB",
        total_bytes=81920 * MIB,
        usable_bytes=round(79.14 * GIB),
        arch="sm_80",
        num_sms=108,
        l2_cache_bytes=40 * MIB,
        source="the smallest figure in public out-of-memory messages; 79.25 GiB in github.com/levihsu/OOTDiffusion issue 235",
    ),
    Gpu(
        name="H100-96GB",
        total_bytes=97871 * MIB,
        usable_bytes=round(94.98 * GIB),
        arch="sm_90",
        num_sms=132,
        l2_cache_bytes=50 * MIB,
        source="github.com/pytorch/torchtitan pull request 1287, whose log calls 49.66 GiB 52.28 % of it",
        context_bytes=H200_CONTEXT,
        caveat="HBM2e, as in Grand Teton; its total is that of other H100 with 96 GB",
    ),
    Gpu(
        name="H200",
        total_bytes=143771 * MIB,
        usable_bytes=150_109_880_320,
        arch="sm_90",
        num_sms=132,
        l2_cache_bytes=60 * MIB,
        source="measured, with driver 580.159",
        context_bytes=H200_CONTEXT,
    ),
    Gpu(
        name="B200",
        total_bytes=183359 * MIB,
        usable_bytes=182631 * MIB,
        arch="sm_100",
        num_sms=148,
        l2_cache_bytes=126 * MIB,
        source="the smaller of the total_memory that public logs print for it, 182631 and 182642 MiB",
        context_bytes=H200_CONTEXT,
        caveat="its context was not measured; an H200's is assumed",
    ),
    Gpu(
        name="MI300X",
        total_bytes=196592 * MIB,
        usable_bytes=196592 * MIB,
        arch="gfx942",
        num_sms=304,
        l2_cache_bytes=4 * MIB,
        source="total_memory in github.com/ROCm/ROCm issue 4203",
        context_bytes=H200_CONTEXT,
        caveat="ROCm's allocator, context and RCCL are taken to be like CUDA's; none of it was measured",
    ),
)
"""By the memory they leave usable."""


USUAL: Final = ("H100-80GB",)
"""What is meant where a model alone is named, because hardly anybody has the others."""


def find_gpu(name: str) -> Gpu:
    """The GPU of that name, forgivingly: ``h100``, ``A100 80GB``, ``v100-16``, ``rtx4090``, ``NVIDIA A100-SXM4-80GB``."""
    words = re.findall(r"[a-z]*\d+[a-z]*", name.lower().replace("rtx", ""))
    found = [gpu for gpu in GPUS if _model_and_memory(gpu)[0] in words]
    sizes = {match[1] for word in words[1:] if (match := re.fullmatch(r"(\d+)(gi?b?)?", word))}
    sized = [gpu for gpu in found if not sizes or _model_and_memory(gpu)[1] in ("", *sizes)]
    usual = [gpu for gpu in sized if not sizes and gpu.name in USUAL]
    if len(sized) == 1 or usual:
        return (usual or sized)[0]
    if found:
        raise ConfigError(f"{name!r} could be {' or '.join(gpu.name for gpu in found)}: name one of them")
    raise ConfigError(f"unknown GPU {name!r}: memfit knows {', '.join(gpu.name for gpu in GPUS)}")


def least_gpu(capacity: int, num_process_groups: int = 0) -> Gpu | None:
    """The GPU with the least memory whose allocator can get so many bytes; ``None`` if there is no such GPU."""
    enough = [gpu for gpu in GPUS if gpu.capacity(num_process_groups) >= capacity]
    return min(enough, key=lambda gpu: gpu.usable_bytes, default=None)


def _model_and_memory(gpu: Gpu) -> tuple[str, str]:
    """``A100-80GB`` is an ``a100`` with ``80``; where there is but one size, the second is empty."""
    model, _, memory = gpu.name.lower().removeprefix("rtx-").partition("-")
    return model, memory.removesuffix("gb")
