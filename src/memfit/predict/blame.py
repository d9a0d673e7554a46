"""Whose error is it? What the user is shown of an error in their code, and told to do about it, depends on it.

::

    NeedsGpuError                                   says itself what to do
    ImportError                                     a package is missing, or is not the one that the script was written for
    raised in the script or in a library            most likely theirs: shown as it is, with what the predicted machine may be told
    raised by torch, below them                     most likely theirs: the line, with the shapes of what is in it
    raised in memfit, or torch cannot do without    ours: the code may well run on a real GPU
    a real GPU

Shown are the frames of the user's own files; ``MEMFIT_TRACEBACK=all`` shows every frame.
"""

from __future__ import annotations

import linecache
import os
import platform
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

import torch

import memfit
from memfit.errors import NeedsGpuError
from memfit.phantom.libraries import PYTHON_ALONE
from memfit.phantom.torch_cuda.module import NO_SUCH_GPU
from memfit.torch_compat.devices import private_backend_name

_MEMFIT, _TORCH = Path(memfit.__file__).parent, Path(torch.__file__).parent
_PYTHON = Path(sysconfig.get_path("stdlib"))

_NO_DATA = "Cannot access data pointer of Tensor"
"""How torch tells a compiled module that a tensor holds no data."""
_EXTENSION = (
    "A compiled module asked for the data of a tensor, and there are none in a prediction. Make what it does a custom operator "
    "that says what it returns (torch.library.custom_op with register_fake), or switch to plain PyTorch for the prediction."
)

_MADE_UP = "(Values that only data can tell are made up in a prediction: --expected says better.)"
_REQUESTED_GPUS: Final = re.compile(r"requested gpus?: \[([\d, ]+)\]", re.IGNORECASE)
"""What Lightning and Fabric say where there are fewer GPUs than they are told to use."""
_MISSING_ARGUMENT: Final = re.compile(r"(\w+)\(\) missing \d+ required [\w-]+ arguments?: '(\w+)'")
_DOTTED_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")

_OF_THE_PREDICTION = (
    "If it does not come on a real machine, an answer of the predicted one is the cause: --nproc says how many GPUs there are, "
    "--expected what only data can tell."
)

OURS = (
    f"If this code runs on a real GPU, memfit's phantom GPU is at fault: please report it. {_MADE_UP} Paste this and what memfit "
    f"doctor prints: memfit {memfit.__version__}, torch {torch.__version__}, Python {platform.python_version()}, "
    f"{platform.system()}."
)
"""The only advice that asks for a report."""


def users_traceback(error: BaseException) -> str:
    """The frames of the user's own code, then the tensors and layers in the line that failed, then the error."""
    shown = traceback.TracebackException(type(error), error, _from_the_user(error.__traceback__))
    if os.environ.get("MEMFIT_TRACEBACK") == "all":
        return "".join(shown.format())
    _leave_out(shown)
    last = "".join(shown.format_exception_only())
    if _users_frame(error) is None and advise(error) != OURS:
        return last  # frames of others say nothing: a file that Python cannot read, an argument that is missing
    whole = "".join(shown.format())
    return whole.removesuffix(last) + "".join(f"    {line}\n" for line in _operands(error)) + last


def advise(error: BaseException) -> str:
    """What to do about an error that came out of the user's code."""
    if isinstance(error, NeedsGpuError):
        return error.advice
    if _NO_DATA in str(error):
        return _EXTENSION
    if isinstance(error, SyntaxError):
        return f"Python cannot read {Path(error.filename or 'the script').name}: mend that line first."
    if isinstance(error, TypeError) and (missing := _MISSING_ARGUMENT.search(str(error))) and _users_frame(error) is None:
        return f"{missing[1]}() needs {missing[2]}: give it with --axis {missing[2]}=VALUE, or {missing[2]}=... in Python."
    if NO_SUCH_GPU in str(error):
        return "Say how many GPUs the script has, with --nproc."
    if (wanted := _REQUESTED_GPUS.search(str(error))) is not None:
        return f"Give the script as many GPUs as it asks for, with --nproc {len(wanted[1].split(','))}."
    frames = traceback.extract_tb(_from_the_user(error.__traceback__))
    raised_by = next((frame for frame in reversed(frames) if not _is_pythons(frame.filename)), None)
    if isinstance(error, ImportError) and (raised_by is None or not _is_in(raised_by.filename, _MEMFIT)):
        return _advise_missing(error)
    if raised_by is None or private_backend_name() in str(error) or isinstance(error, NotImplementedError):
        return OURS
    if _is_in(raised_by.filename, _TORCH) or _is_torchs_own(error, raised_by):
        return f"torch raises it for {_name_line(error)}: look at the shapes and types in it. {_OF_THE_PREDICTION}"
    if _is_in(raised_by.filename, _MEMFIT):
        return OURS
    return f"The error is raised by {Path(raised_by.filename).name}:{raised_by.lineno}. {_OF_THE_PREDICTION}"


def _is_torchs_own(error: BaseException, raised_by: traceback.FrameSummary) -> bool:
    """Is it raised by torch's C++, which memfit only called on the user's behalf?"""
    is_passed_on = isinstance(error, RuntimeError) and _is_in(raised_by.filename, _MEMFIT)
    return is_passed_on and not (raised_by.line or "").startswith(("raise", "assert"))


def _name_line(error: BaseException) -> str:
    found = _users_frame(error)
    return "your code" if found is None else f"{Path(found[0].f_code.co_filename).name}:{found[1]}"


# -- what is shown -----------------------------------------------------------------------------------------------------------------


def _leave_out(shown: traceback.TracebackException) -> None:
    """Frames of torch, memfit, Python and installed packages go, but for the last one of a package that raised by itself."""
    kept = [frame for frame in shown.stack if _is_users(frame.filename)]
    last = shown.stack[-1:] if len(shown.stack) else []
    if last and not _is_users(last[0].filename) and not _is_in(last[0].filename, _MEMFIT, _TORCH):
        kept += last
    if kept:
        shown.stack = traceback.StackSummary.from_list(kept)
    for earlier in (shown.__cause__, shown.__context__):
        if earlier is not None:
            _leave_out(earlier)


def _operands(error: BaseException) -> Iterator[str]:
    """The tensors and layers that the failing line names, with their shapes: ``x is [8, 4] float32 on cuda:0``."""
    found = _users_frame(error)
    if found is None:
        return
    frame, number = found
    seen: set[str] = set()
    for name in _DOTTED_NAME.findall(linecache.getline(frame.f_code.co_filename, number)):
        value = _look_up(frame, name)
        if name not in seen and (words := _shape(value)):
            seen.add(name)
            yield f"{name} is {words}"


def _look_up(frame: FrameType, name: str) -> Any:
    """What a dotted name stands for; attributes are read of modules alone, where that runs none of the user's code."""
    first, *rest = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for part in rest:
        if isinstance(value, torch.Tensor) or not isinstance(value, torch.nn.Module):
            return value
        value = vars(value).get(part, value._modules.get(part, value._parameters.get(part, value._buffers.get(part))))
    return value


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        device = "cuda" if value.device.type == private_backend_name() else value.device.type
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} on {device}"
    if isinstance(value, torch.nn.Module) and not value._modules:
        return repr(value)
    return ""


def _users_frame(error: BaseException) -> tuple[FrameType, int] | None:
    """The innermost frame of the user's own code, and its line."""
    found, frames = None, error.__traceback__
    while frames is not None:
        if _is_users(frames.tb_frame.f_code.co_filename):
            found = frames.tb_frame, frames.tb_lineno
        frames = frames.tb_next
    return found


def _is_users(file: str) -> bool:
    installed = "site-packages" in file or "dist-packages" in file
    return not installed and not file.startswith("<") and not _is_in(file, _MEMFIT, _TORCH, _PYTHON)


def _advise_missing(error: ImportError) -> str:
    package = (error.name or "").partition(".")[0]
    said = re.sub(r"[ -]", "_", str(error).lower())
    for name, command in PYTHON_ALONE.items():
        if name == package or name in said:
            return f"The Python part of {name} is enough for a prediction, and needs no GPU: {command}"
    if isinstance(error, ModuleNotFoundError) and package and package not in sys.modules:
        return f"{package} is not installed where memfit runs, or is not to be found from this folder."
    if isinstance(error, ModuleNotFoundError) and package:
        return f"{package} is installed where memfit runs, but {error.name} is not a part of it: is another version needed?"
    return f"{package or 'A package'} cannot be imported as the script wants it: is another version needed?"


def _from_the_user(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_next is not None and _starts_the_user(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return frames


def _starts_the_user(file: str) -> bool:
    return _is_in(file, _MEMFIT) or "runpy" in file


def _is_in(file: str, *folders: Path) -> bool:
    return any(folder in Path(file).parents for folder in folders)


def _is_pythons(file: str) -> bool:
    """A part of Python itself, which raises what its caller made it raise."""
    return file.startswith("<frozen") or (_is_in(file, _PYTHON) and "site-packages" not in file)
