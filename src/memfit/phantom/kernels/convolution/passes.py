"""A convolution as cuDNN sees it, and which of its three results a call computes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch


class Pass(Enum):
    """The three passes of a convolution: kind of descriptor, and its attributes for scales, convolution, weight, input, output."""

    FORWARD = (10, 700, 701, 702, 703, 704, 705)
    OF_INPUT = (12, 706, 707, 708, 709, 710, 711)
    OF_WEIGHT = (11, 712, 713, 714, 715, 716, 717)


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """As cuDNN sees it: a transposed one is the gradient of the input of another."""

    of: Pass
    x: tuple[int, ...]
    weight: tuple[int, ...]
    y: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    def in_two_dimensions(self) -> Convolution:
        """One dimension is two, of which the first has size one: as ATen/native/Convolution.cpp does it."""
        if len(self.x) != 3:
            return self
        x, weight, y = ((*shape[:2], 1, shape[2]) for shape in (self.x, self.weight, self.y))
        return Convolution(
            of=self.of, x=x, weight=weight, y=y, dtype=self.dtype, channels_last=False,
            stride=(1, *self.stride), padding=(0, *self.padding), dilation=(1, *self.dilation),
        )  # fmt: skip
