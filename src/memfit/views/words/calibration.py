"""What ``memfit calibrate`` prints when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from memfit.calibrate.runs import Learned
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


def learned_lines(found: Learned, gpu: str, path: Path) -> Iterator[str]:
    """By how much real steps differ from predicted ones, and what was corrected by it."""
    for run in found.runs:
        bound = "the card" if run.is_bound_by_card else "the host"
        yield (
            f"A step took {1000 * run.measured_seconds:,.1f} ms, predicted {1000 * run.predicted_seconds:,.1f} "
            f"({run.factor - 1:+.1%}), bound by {bound}: busy for {run.busy_share:.0%} of it."
        )
    if found.kernels is not None:
        yield f"Kernels of {gpu} take {found.kernels - 1:+.1%} longer than they were taken to."
    if found.host is not None:
        yield f"The host takes {found.host - 1:+.1%} longer than it was taken to."
    yield f"{path}: use it with --gpu {path}"
