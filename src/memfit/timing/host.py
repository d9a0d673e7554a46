"""The host's own pace."""

from __future__ import annotations
from dataclasses import dataclass
from typing import Final
from memfit.timing.calls import Call
from memfit.timing.costs import Cost

LAUNCH_SECONDS: Final = 4e-6
GAP_SECONDS: Final = 1e-6


@dataclass(frozen=True, kw_only=True)
class HostPace:
    view: float = 1.5e-6
    backward_view: float = 3e-6
    module: float = 2e-6
    optimizer: float = 50e-6
    optimizer_parameter: float = 3e-6
    fsdp_task: float = 100e-6

    def operator(self, call: Call, cost: Cost, in_backward: bool) -> float:
        return 6e-6


PACE: Final = HostPace()
