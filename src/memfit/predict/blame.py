"""Whose error is it? What the user is told to do about an error in their code depends on it.

::

    NeedsGpuError                                   says itself what to do
    ImportError                                     a package is missing, or is not the one that the script was written for
    raised in the script or in a library            most likely theirs: shown as it is, with what the predicted machine may be told
    raised in torch or in memfit, below them        may be ours: the code may well run on a real GPU
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import torch

import memfit
from memfit.errors import NeedsGpuError
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

_OF_THE_PREDICTION = (
    "If it does not come on a real machine, an answer of the predicted one is the cause: --nproc says how many GPUs there are, "
    "--expected what only data can tell."
)

OURS = f"If this code runs on a real GPU, memfit's phantom GPU is at fault: please report it. {_MADE_UP}"
"""The only advice that asks for a report."""


def users_traceback(error: BaseException) -> str:
    """The frames from the user's own code down."""
    return "".join(traceback.format_exception(type(error), error, _from_the_user(error.__traceback__)))


def advise(error: BaseException) -> str:
    """What to do about an error that came out of the user's code."""
    if isinstance(error, NeedsGpuError):
        return error.advice
    if _NO_DATA in str(error):
        return _EXTENSION
    frames = traceback.extract_tb(_from_the_user(error.__traceback__))
    raised_by = next((frame for frame in reversed(frames) if not _is_pythons(frame.filename)), None)
    if isinstance(error, ImportError) and (raised_by is None or not _is_in(raised_by.filename, _MEMFIT)):
        return _advise_missing(error)
    if raised_by is None or private_backend_name() in str(error) or _is_in(raised_by.filename, _MEMFIT, _TORCH):
        return OURS
    return f"The error is raised by {Path(raised_by.filename).name}:{raised_by.lineno}. {_OF_THE_PREDICTION}"


def _advise_missing(error: ImportError) -> str:
    package = (error.name or "").partition(".")[0]
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
