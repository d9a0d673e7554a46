"""Variables of functions that are running, read without keeping anything alive."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any


def local_variable(frame: FrameType, name: str) -> Any:
    """The value of a function's variable, or ``None`` where it has none of this name.

    Before Python 3.13 ``frame.f_locals`` leaves a copy of all variables on the frame, and with it every tensor that a training loop
    has, until the function returns. The copy is emptied here; the variables themselves stay.
    """
    code = frame.f_code
    if name not in code.co_varnames or not code.co_flags & inspect.CO_OPTIMIZED:
        return None
    variables = frame.f_locals
    value = variables.get(name)
    if type(variables) is dict:
        variables.clear()
    return value
