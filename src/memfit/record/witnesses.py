"""Who sees the blocks of a run: a dispatch mode that sees operators, or the history of CUDA's allocator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn

from memfit.errors import ConfigError
from memfit.record.listener import warn
from memfit.torch_compat import memory_history
from memfit.torch_compat.dispatch import modes_of_this_thread
from memfit.torch_compat.fake_tensors import FakeTensor, FakeTensorMode

WITNESSES: Final = ("operators", "allocator")


def choose_witness(wanted: str | None, subjects: Sequence[Any]) -> str:
    """``wanted``, or what suits the run: CUDA's allocator where there is one, unless all that is tracked is elsewhere."""
    if wanted is not None and wanted not in WITNESSES:
        raise ConfigError(f"there is no witness {wanted!r}: choose one of {', '.join(WITNESSES)}")
    if wanted == "operators":
        return wanted
    tensors = [tensor for subject in subjects for tensor in _tensors_of(subject)]
    devices = {tensor.device.type for tensor in tensors} - {"meta"}
    others = devices - {"cpu", "cuda"}
    if others:
        warn(f"tracking {', '.join(sorted(others))} with a dispatch mode: only CUDA's allocator keeps a history that memfit reads")
    are_elsewhere = bool(devices) and "cuda" not in devices
    if wanted is None and (are_elsewhere or any(isinstance(tensor, FakeTensor) for tensor in tensors)):
        return "operators"  # and CUDA is not asked for anything
    reason = why_no_history()
    if wanted == "allocator" and reason:
        raise ConfigError(f"cannot record from the allocator's history: {reason}. witness='operators' records any device")
    return "operators" if reason else "allocator"


def why_no_history() -> str:
    """Why the allocator's history cannot be read here; empty where it can."""
    if any(isinstance(mode, FakeTensorMode) for mode in modes_of_this_thread()):
        return "tensors are fake here, so that nothing is allocated"
    if not memory_history.keeps_history():
        backend = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        if backend is not None and backend.type != "cuda":
            return f"the accelerator is {backend.type}, and only CUDA's allocator keeps a history that memfit reads"
        return "there is no CUDA here, or its allocator is not torch's own"
    if memory_history.is_kept_by_somebody():
        return "somebody else is keeping it: call torch.cuda.memory._record_memory_history(None) first"
    return ""


def _tensors_of(subject: Any) -> Iterable[torch.Tensor]:
    if isinstance(subject, nn.Module):
        return subject.parameters()
    if isinstance(subject, torch.Tensor):
        return [subject]
    return [parameter for group in subject.param_groups for parameter in group["params"]]
