"""Categories and states as PyTorch's trackers spell them, and what of a ledger each one stands for.

Members are strings, so a snapshot can be read with PyTorch's own enumerations as keys.
"""

from __future__ import annotations

from enum import Enum

from memfit.ledger import Category

TOTAL = "Total"


class RefType(str, Enum):
    """What a block is, to a tracker."""


class SnapshotState(str, Enum):
    """When a snapshot of a module was taken."""

    @property
    def is_peak(self) -> bool:
        """Was it taken at the highest moment, rather than at a certain one?"""
        return self.name.startswith("PEAK")


class MemRefType(RefType):
    PARAM = "Parameter"
    BUFFER = "Buffer"
    GRAD = "Gradient"
    ACT = "Activation"
    TEMP = "Temp"
    OPT = "Optstate"
    OTH = "Other"


class FSDPRefType(RefType):
    SHARDED_PARAM = "Sharded Param"
    UNSHARDED_PARAM = "Unsharded Param"
    BUFFER = "Buffer"
    SHARDED_GRAD = "Sharded Grad"
    UNSHARDED_GRAD = "Unsharded Grad"
    ACT = "Activation"
    TEMP = "Temp"
    ALL_GATHER = "All Gather"
    REDUCE_SCATTER = "Reduce Scatter"
    OPT = "OptState"
    INP = "Inputs"


class ModState(SnapshotState):
    PRE_FW = "Pre-Forward"
    POST_FW = "Post-Forward"
    PEAK_FW = "Peak-Forward"
    PRE_BW = "Pre-Backward"
    PRE_FW_AC = "Pre-Forward-AC"
    POST_FW_AC = "Post-Forward-AC"
    POST_BW = "Post-Backward"
    PEAK_BW = "Peak-Backward"


class FSDPModState(SnapshotState):
    BEF_PRE_FW = "Before Pre-Forward"
    AFT_PRE_FW = "After Pre-Forward"
    BEF_POST_FW = "Before Post-Forward"
    AFT_POST_FW = "After Post-Forward"
    BEF_PRE_BW = "Before Pre-Backward"
    AFT_PRE_BW = "After Pre-Backward"
    BEF_POST_BW = "Before Post-Backward"
    AFT_POST_BW = "After Post-Backward"
    PRE_FW_AC = "Pre-Forward AC"
    POST_FW_AC = "Post-Forward AC"
    PEAK_FW = "Peak Forward"
    PEAK_BW = "Peak Backward"


MEM_REF_TYPES: dict[Category, RefType] = {
    Category.PARAMETER: MemRefType.PARAM,
    Category.SHARDED_PARAMETER: MemRefType.PARAM,
    Category.UNSHARDED_PARAMETER: MemRefType.PARAM,
    Category.BUFFER: MemRefType.BUFFER,
    Category.GRADIENT: MemRefType.GRAD,
    Category.SHARDED_GRADIENT: MemRefType.GRAD,
    Category.UNSHARDED_GRADIENT: MemRefType.GRAD,
    Category.OPTIMIZER_STATE: MemRefType.OPT,
    Category.ACTIVATION: MemRefType.ACT,
    Category.FORWARD_TEMPORARY: MemRefType.ACT,
    Category.BACKWARD_TEMPORARY: MemRefType.TEMP,
    Category.OPTIMIZER_TEMPORARY: MemRefType.TEMP,
    Category.ALL_GATHER: MemRefType.TEMP,
    Category.REDUCE_SCATTER: MemRefType.TEMP,
    Category.ALL_REDUCE: MemRefType.TEMP,
    Category.WORKSPACE: MemRefType.TEMP,
    Category.INPUT: MemRefType.OTH,
    Category.CHECKPOINT: MemRefType.OTH,
    Category.KEY_VALUE_CACHE: MemRefType.OTH,
    Category.OTHER: MemRefType.OTH,
}

FSDP_REF_TYPES: dict[Category, RefType] = {
    Category.PARAMETER: FSDPRefType.SHARDED_PARAM,
    Category.SHARDED_PARAMETER: FSDPRefType.SHARDED_PARAM,
    Category.UNSHARDED_PARAMETER: FSDPRefType.UNSHARDED_PARAM,
    Category.BUFFER: FSDPRefType.BUFFER,
    Category.GRADIENT: FSDPRefType.SHARDED_GRAD,
    Category.SHARDED_GRADIENT: FSDPRefType.SHARDED_GRAD,
    Category.UNSHARDED_GRADIENT: FSDPRefType.UNSHARDED_GRAD,
    Category.OPTIMIZER_STATE: FSDPRefType.OPT,
    Category.ACTIVATION: FSDPRefType.ACT,
    Category.FORWARD_TEMPORARY: FSDPRefType.ACT,
    Category.BACKWARD_TEMPORARY: FSDPRefType.TEMP,
    Category.OPTIMIZER_TEMPORARY: FSDPRefType.TEMP,
    Category.ALL_GATHER: FSDPRefType.ALL_GATHER,
    Category.REDUCE_SCATTER: FSDPRefType.REDUCE_SCATTER,
    Category.ALL_REDUCE: FSDPRefType.TEMP,
    Category.WORKSPACE: FSDPRefType.TEMP,
    Category.INPUT: FSDPRefType.INP,
    Category.CHECKPOINT: FSDPRefType.TEMP,
    Category.KEY_VALUE_CACHE: FSDPRefType.TEMP,
    Category.OTHER: FSDPRefType.TEMP,
}
