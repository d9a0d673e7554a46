"""Convolution nets, written out here so that nothing but torch is needed: ``NETS[name]()`` makes a model, its inputs and its loss.

Of each kind that predictions of reserved memory were furthest off for: images, detection, segmentation, video and sound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Net:
    model: nn.Module
    inputs: tuple[torch.Tensor, ...]
    loss: Callable[[Any], torch.Tensor]


def mean_of_all(outputs: Any) -> torch.Tensor:
    """A loss whose gradient reaches every output."""
    outputs = outputs if isinstance(outputs, Sequence) else (outputs,)
    return sum((output.float().square().mean() for output in outputs), torch.zeros((), device=outputs[0].device))


# -- images --------------------------------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        is_same = stride == 1 and inputs == outputs
        self.skip = (
            nn.Identity() if is_same else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x), inplace=True)


class Pyramid(nn.Module):
    """The convolutions of a ResNet-50; gives what its four stages give."""

    def __init__(self, blocks: Sequence[int] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        self.stages = nn.ModuleList()
        inputs = 64
        for level, count in enumerate(blocks):
            width, stage = 64 * 2**level, []
            for number in range(count):
                stage.append(Bottleneck(inputs, width, 2 if level and not number else 1))
                inputs = 4 * width
            self.stages.append(nn.Sequential(*stage))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        x, found = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Pyramid(), nn.Linear(2048, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x)[-1].mean((2, 3)))


class Detector(nn.Module):
    """A ResNet-50, a feature pyramid over it, and two heads of five convolutions that run on every level."""

    def __init__(self, width: int = 256, num_classes: int = 80, num_anchors: int = 9) -> None:
        super().__init__()
        self.body = Pyramid()
        self.lateral = nn.ModuleList(nn.Conv2d(inputs, width, 1) for inputs in (512, 1024, 2048))
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.coarser = nn.ModuleList([nn.Conv2d(2048, width, 3, 2, 1), nn.Conv2d(width, width, 3, 2, 1)])
        self.classes, self.boxes = (self._head(width, outputs * num_anchors) for outputs in (num_classes, 4))

    @staticmethod
    def _head(width: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.Conv2d(width, outputs, 3, padding=1))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        stages = self.body(x)[1:]
        levels = [lateral(stage) for lateral, stage in zip(self.lateral, stages, strict=True)]
        for fine, coarse in ((1, 2), (0, 1)):
            levels[fine] = levels[fine] + F.interpolate(levels[coarse], size=levels[fine].shape[-2:], mode="nearest")
        levels = [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]
        levels.append(self.coarser[0](stages[-1]))
        levels.append(self.coarser[1](F.relu(levels[-1])))
        return [head(level) for level in levels for head in (self.classes, self.boxes)]


class UNet(nn.Module):
    """Two convolutions a level; down by pooling, up by transposed convolutions."""

    def __init__(self, inputs: int = 3, outputs: int = 2, widths: Sequence[int] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        self.down = nn.ModuleList(self._double(a, b) for a, b in zip((inputs, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(widths))
        self.join = nn.ModuleList(self._double(2 * width, width) for width in widths[:-1])
        self.last = nn.Conv2d(widths[0], outputs, 1)

    @staticmethod
    def _double(a: int, b: int) -> nn.Module:
        layers: list[nn.Module] = []
        for inputs in (a, b):
            layers += [nn.Conv2d(inputs, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for number, level in enumerate(self.down):
            x = level(x if number == 0 else F.max_pool2d(x, 2))
            kept.append(x)
        for up, join, skip in zip(reversed(self.up), reversed(self.join), reversed(kept[:-1]), strict=True):
            x = join(torch.cat((skip, up(x)), 1))
        return self.last(x)


# -- video and sound -----------------------------------------------------------------------------------------------------------


class VideoBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm3d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv3d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm3d(outputs),
        )
        is_same = stride == 1 and inputs == outputs
        self.skip = (
            nn.Identity() if is_same else nn.Sequential(nn.Conv3d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm3d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x), inplace=True)


class VideoNet(nn.Module):
    """A ResNet of 18 layers with three-dimensional kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv3d(3, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False), nn.BatchNorm3d(64), nn.ReLU(inplace=True)
        )
        widths = (64, 64, 128, 256, 512)
        blocks: list[nn.Module] = []
        for number, (a, b) in enumerate(pairwise(widths)):
            blocks += [VideoBlock(a, b, 2 if number else 1), VideoBlock(b, b, 1)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(512, 400)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3, 4)))


class SoundNet(nn.Module):
    """The seven convolutions that turn samples into frames, and the grouped one that gives positions, as in wav2vec 2.0."""

    def __init__(self, width: int = 512, hidden: int = 768) -> None:
        super().__init__()
        kernels = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))
        self.frames = nn.ModuleList(nn.Conv1d(width if n else 1, width, k, s, bias=False) for n, (k, s) in enumerate(kernels))
        self.norm = nn.GroupNorm(width, width)
        self.project = nn.Linear(width, hidden)
        self.positions = nn.utils.parametrizations.weight_norm(nn.Conv1d(hidden, hidden, 128, padding=64, groups=16), dim=2)
        self.head = nn.Linear(hidden, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.frames):
            x = layer(x)
            x = F.gelu(x if number else self.norm(x))
        x = self.project(x.transpose(1, 2))
        return self.head(x + F.gelu(self.positions(x.transpose(1, 2))[..., :-1]).transpose(1, 2))


def _net(make: Callable[[], nn.Module], *shape: int) -> Callable[[], Net]:
    return lambda: Net(make().to("cuda"), (torch.randn(shape, device="cuda"),), mean_of_all)


NETS: dict[str, Callable[[], Net]] = {
    "resnet50": _net(ResNet, 32, 3, 224, 224),
    "detector": _net(Detector, 4, 3, 512, 640),
    "unet": _net(UNet, 4, 3, 256, 256),
    "video": _net(VideoNet, 4, 3, 16, 112, 112),
    "sound": _net(SoundNet, 8, 1, 48_000),
}
