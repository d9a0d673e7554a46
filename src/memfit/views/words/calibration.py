"""What ``memfit calibrate`` prints when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memfit.calibrate.session import Calibration
from memfit.units import format_bytes


def calibration_lines(done: Calibration, path: Path) -> Iterator[str]:
    """What was measured, how well the clock fits it, what was not measured, and how to use the file."""
    told = done.tables["calibration"]
    if (memory := done.measured.memory) is not None:
        yield (
            f"A process takes {format_bytes(memory.context_bytes)} beside its tensors; cuBLAS keeps "
            f"{format_bytes(memory.cublas_workspace_bytes)}; attention runs in {memory.attention_kernel}."
        )
    if told["num_calls"]:
        yield (
            f"{told['num_calls']:,} calls of operators were timed: prices are off by {told['off_after']:.1%} in the median "
            f"({told['off_before']:.0%} before they were fitted)."
        )
    if told["not_measured"]:
        yield f"Scaled with the rest, not measured: {', '.join(told['not_measured'])}."
    for error in told["errors"][:5]:
        yield f"Not measured: {error}"
    yield f"{path}: use it with --gpu {path}"
