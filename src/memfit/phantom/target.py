"""The target of a prediction: a GPU, a version of torch and its libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from memfit.data import FOLDER, read_toml
from memfit.errors import ConfigError
from memfit.hardware import Gpu, find_gpu
from memfit.torch_versions import TorchVersion

DEFAULT_TORCH = "2.11+cu130"
"""The newest torch whose kernels were measured."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """The GPU and the build of torch, which decide which kernels run and what they take."""

    gpu: Gpu
    torch: tuple[int, int]
    build: str = "cu130"
    """The CUDA build: ``cu130``, ``cu126``."""

    @classmethod
    def parse(cls, gpu: str, torch_version: str) -> Target:
        """Reads ``"H200"`` and ``"2.11+cu130"``. Raises ``ConfigError`` for an unknown GPU and for a build without CUDA."""
        version = TorchVersion.parse(torch_version)
        if version.build and not re.fullmatch(r"cu\d+", version.build):
            raise ConfigError(f"{torch_version!r} is no build of torch for CUDA: write it like {DEFAULT_TORCH}")
        return cls(gpu=find_gpu(gpu), torch=version.release, build=version.build or "cu130")

    @property
    def capability(self) -> tuple[int, int]:
        """``(9, 0)`` for an H100; of an AMD GPU as ROCm's torch says it, ``(9, 4)`` for gfx942."""
        if self.is_rocm:
            digits = self.gpu.arch.removeprefix("gfx")
            return int(digits[:-2]), int(digits[-2], 16)
        digits = self.gpu.arch.removeprefix("sm_")
        return int(digits[:-1]), int(digits[-1])

    @property
    def is_rocm(self) -> bool:
        """An AMD GPU: hipBLAS in place of cuBLAS, and no cuDNN."""
        return self.gpu.arch.startswith("gfx")

    @property
    def cudnn(self) -> tuple[int, ...]:
        """The version of cuDNN that comes with this torch."""
        wheels = _cudnn_of_wheels()
        builds = wheels[max((known for known in wheels if known <= self.torch), default=min(wheels))]
        named = [build for build in builds if self.build.startswith(build)]
        return builds[max(named, key=len)] if named else max(builds.values())


@cache
def _cudnn_of_wheels() -> Mapping[tuple[int, int], Mapping[str, tuple[int, ...]]]:
    """The cuDNN version in torch's wheels, by torch version and prefix of the CUDA build."""
    wheels = read_toml(FOLDER / "cudnn.toml")["wheels"]
    return {
        TorchVersion.parse(torch).release: {build: tuple(map(int, cudnn.split("."))) for build, cudnn in builds.items()}
        for torch, builds in wheels.items()
    }
