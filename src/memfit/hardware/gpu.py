"""A GPU: how much memory it has, how much of it a training process can use, and what it could do at best.

::

    total                   what nvidia-smi says the card has
     └─ usable              what the driver leaves to CUDA: torch.cuda.get_device_properties().total_memory
         ├─ context         taken by the process before and beside its tensors: CUDA, cuBLAS, cuDNN, loaded kernels
         ├─ communicators   taken by NCCL, for each process group, and for ranks that are sent to one by one
         └─ the rest        what PyTorch's allocator can get

The figures are in ``data/gpus.toml``, with their sources. Peaks are published ones, which no price may beat; what is reached of
them was measured (``timing/rates.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from memfit.data import FOLDER, parse_table, read_toml
from memfit.errors import ConfigError
from memfit.units import MIB, parse_bytes

GPUS_PER_NODE: Final = 8
"""Where nothing says how many there are: torchrun's ``LOCAL_WORLD_SIZE`` does."""
MOST_GPUS: Final = 1 << 20
"""Of one job: more than there are, and groups of all of them are still made in seconds."""

NCCL_ONCE_BYTES: Final = 166 * MIB
"""What a process takes for NCCL once: its first communicator took 556 MiB on an H200, each further one 390."""
PEER_BYTES: Final = 3_280_000_000 // 7
"""What NCCL takes for each rank that is sent to by itself: an all-to-all among 8 H100 raised 1.06 GB to 4.34 (NVIDIA/nccl#1685)."""

TERA: Final = 1e12
GIGA: Final = 1e9

KEPT_BYTES: Final = 600 * MIB
"""What a driver keeps of a card that was not measured: 387 to 463 MiB are kept of GeForce cards (RTX 4090, 4080 SUPER, 5060 Ti),
550 to 620 of an H100, an H200, an L40 and an RTX 6000 Ada."""
KEPT_SOURCE: Final = "not seen: 600 MiB less than its total is assumed"

THREADS: Final = {"sm_75": 1024, "sm_86": 1536, "sm_87": 1536, "sm_89": 1536, "sm_120": 1536, "sm_121": 1536}
"""Most that a multiprocessor has at once, by CUDA's programming guide; 2,048 on NVIDIA's other architectures."""
THREAD_BYTES: Final = 2048
"""What CUDA keeps for each of them as soon as it is up. Reported: 107 MiB on an RTX 4060 Ti and 555 on an RTX PRO 6000
(ggml-org/llama.cpp pull request 23604), 256 on an RTX 3090 (invoke-ai/InvokeAI issue 9413), 426 on an RTX 6000 Ada
(unslothai/unsloth-zoo pull request 1053): 1.97 to 2.10 KiB a thread. An H200 was seen with 527 to 597 MiB: 528 by this."""
TRAINING_BYTES: Final = 240 * MIB
"""What training adds to that: cuBLAS, cuDNN, loaded kernels, as on an H200."""

_SIZES: Final = ("total", "usable", "context", "communicator", "cublas_workspace", "l2_cache", "last_level_cache")
"""Keys of the file that are amounts of memory."""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A kind of GPU. Memory is in bytes, speed in operations and bytes a second."""

    name: str
    arch: str
    """``sm_90``, or what AMD calls it."""
    num_sms: int
    """Streaming multiprocessors; compute units of an AMD GPU."""
    total_bytes: int
    """What ``nvidia-smi`` says it has."""
    usable_bytes: int
    """What the driver leaves to CUDA."""
    usable_source: str
    context_bytes: int = 666 * MIB
    """Of one that is not NVIDIA's, and of which nobody said it, what an RTX 6000 Ada takes."""
    communicator_bytes: int = 688 * MIB
    """Of NCCL's first communicator."""
    cublas_workspace_bytes: int = 0
    """What cuBLAS keeps for a thread and a stream, where it was measured; 0: as torch's source has it for the architecture."""
    caveat: str = ""
    """What makes its memory less sure than that of others."""
    is_usual: bool = False
    """It is meant where several have the name that was given."""
    is_offered: bool = False
    """It is among those that are listed and proposed; the others are known where they are named."""
    file: str = ""
    """The whole path of the file that its owner made with ``memfit calibrate``; empty for one that memfit knows."""
    l2_cache_bytes: int
    """As torch reports it. Compiled kernels are timed with a buffer of this size."""
    last_level_cache_bytes: int
    """The cache before memory, which all of the GPU shares."""
    bf16_flops: float
    """Of dense products, sums in float32."""
    f16_flops: float
    tf32_flops: float
    f8_flops: float
    """Of float8; where a GPU has none, what it has for half types."""
    f32_flops: float
    """Without tensor cores: products in float32, and all other arithmetic."""
    f64_flops: float
    memory_bandwidth: float
    link_bandwidth: float
    """To other GPUs of its node, in one direction: NVLink where it has it, otherwise PCIe."""
    host_bandwidth: float
    """To and from the host, in one direction."""
    has_multicast: bool = False
    """Its switch can add up (NVLink SHARP)."""
    speed_source: str
    speed_compared: str = ""
    """A second table that has the same peaks; empty where nobody looked."""

    @classmethod
    def load(cls, path: Path) -> Gpu:
        """The one GPU of a TOML file with a table like those of ``data/gpus.toml``. Raises ``ConfigError`` for anything else."""
        found = load_gpus(path)
        if len(found) != 1:
            raise ConfigError(f"{path} has {len(found)} GPUs: write one table, with its name in brackets")
        return found[0]

    @classmethod
    def from_table(cls, name: str, table: Mapping[str, Any], where: str) -> Gpu:
        """A table of ``data/gpus.toml``. Raises ``ConfigError``, which begins with ``where``."""
        values = {key: value for key, value in table.items() if key not in (*_SIZES, "teraflops", "gigabytes_per_second")}
        values |= {f"{key}_bytes": parse_bytes(table[key]) for key in _SIZES if key in table}
        values |= {f"{kind}_flops": peak * TERA for kind, peak in table.get("teraflops", {}).items()}
        values |= {f"{path}_bandwidth": rate * GIGA for path, rate in table.get("gigabytes_per_second", {}).items()}
        for left_out, same in (("f16_flops", "bf16_flops"), ("last_level_cache_bytes", "l2_cache_bytes")):
            if same in values:
                values.setdefault(left_out, values[same])
        if str(values.get("arch", "")).startswith("sm_") and "num_sms" in values:
            kept = values["num_sms"] * THREADS.get(values["arch"], 2048) * THREAD_BYTES
            values.setdefault("context_bytes", TRAINING_BYTES + kept)
        if "total_bytes" in values and "usable_bytes" not in values:
            values |= {"usable_bytes": values["total_bytes"] - KEPT_BYTES, "usable_source": KEPT_SOURCE}
        return parse_table(cls, {"name": name, **values}, where)

    def communicators_bytes(self, num_process_groups: int, num_peers: int = 0) -> int:
        """What NCCL takes for process groups of several ranks. ``num_peers``: of each group, the ranks of this node that are sent
        to or received from one by one, as an all-to-all does."""
        once = min(NCCL_ONCE_BYTES, self.communicator_bytes)
        each = num_process_groups * (self.communicator_bytes - once)
        return (once if num_process_groups else 0) + each + num_peers * PEER_BYTES

    def capacity(self, num_process_groups: int = 0, num_peers: int = 0) -> int:
        """The bytes that PyTorch's allocator can get."""
        beside = self.context_bytes + self.communicators_bytes(num_process_groups, num_peers)
        return max(0, self.usable_bytes - beside)

    def product_flops(self, dtype: str, allow_tf32: bool = False) -> float:
        """The peak for products of this type; ``tf32`` is float32 on tensor cores."""
        if dtype == "tf32" or (dtype == "f32" and allow_tf32):
            return self.tf32_flops
        peaks = {"bf16": self.bf16_flops, "f16": self.f16_flops, "f8": self.f8_flops, "f64": self.f64_flops}
        return peaks.get(dtype, self.f32_flops)


def load_gpus(path: Path) -> tuple[Gpu, ...]:
    """All GPUs of a TOML file, by the memory they leave usable. Raises ``ConfigError`` where one is not complete."""
    found = [Gpu.from_table(name, table, f"{path.name}, {name}") for name, table in read_toml(path).items()]
    return tuple(sorted(found, key=lambda gpu: gpu.usable_bytes))


@cache
def known_gpus() -> tuple[Gpu, ...]:
    """All GPUs of ``data/gpus.toml``, by the memory they leave usable."""
    return load_gpus(FOLDER / "gpus.toml")


@cache
def gpus() -> tuple[Gpu, ...]:
    """The GPUs that memfit lists and proposes, by the memory they leave usable."""
    return tuple(gpu for gpu in known_gpus() if gpu.is_offered)


def least_gpu(capacity: int, num_process_groups: int = 0, num_peers: int = 0) -> Gpu | None:
    """The GPU with the least memory whose allocator can get that many bytes; ``None`` if there is no such GPU."""
    return next((gpu for gpu in gpus() if gpu.capacity(num_process_groups, num_peers) >= capacity), None)
