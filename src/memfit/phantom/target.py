"""What a prediction is for: a GPU, a version of torch and the libraries that come with it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from memfit.errors import ConfigError
from memfit.hardware import Gpu, find_gpu

DEFAULT_TORCH = "2.11+cu130"
"""The newest torch whose kernels were measured."""

_CUDNN_OF_BUILD = {
    (2, 9): {"cu13": (9, 13, 0), "cu12": (9, 10, 2)},
    (2, 10): {"cu13": (9, 15, 1), "cu12": (9, 10, 2)},
    (2, 11): {"cu13": (9, 19, 0), "cu129": (9, 17, 1), "cu128": (9, 19, 0), "cu126": (9, 10, 2)},
    (2, 12): {"cu13": (9, 20, 0), "cu126": (9, 10, 2)},
    (2, 13): {"cu13": (9, 20, 0), "cu126": (9, 10, 2)},
    (2, 15): {"cu13": (9, 26, 0)},
}
"""The cuDNN that PyTorch's own wheels bring, by the start of their build's name; a version between two has the older one's."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Decides which kernels run, and what they take."""

    gpu: Gpu
    torch: tuple[int, int]
    build: str = "cu130"
    """The CUDA build: ``cu130``, ``cu126``."""

    @classmethod
    def parse(cls, gpu: str, torch_version: str) -> Target:
        """Reads ``"H200"`` and ``"2.11+cu130"``."""
        match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\w+)?(?:\+(cu\d+))?", torch_version)
        if match is None:
            raise ConfigError(f"cannot read {torch_version!r} as a version of torch: write it like {DEFAULT_TORCH}")
        return cls(gpu=find_gpu(gpu), torch=(int(match[1]), int(match[2])), build=match[3] or "cu130")

    @property
    def capability(self) -> tuple[int, int]:
        """``(9, 0)`` for an H100."""
        digits = self.gpu.arch.removeprefix("sm_")
        return (int(digits[:-1]), int(digits[-1])) if digits.isdigit() else (9, 0)

    @property
    def cudnn(self) -> tuple[int, int, int]:
        """The version of cuDNN that comes with this torch."""
        builds = _CUDNN_OF_BUILD[max((known for known in _CUDNN_OF_BUILD if known <= self.torch), default=min(_CUDNN_OF_BUILD))]
        named = [build for build in builds if self.build.startswith(build)]
        return builds[max(named, key=len)] if named else max(builds.values())
