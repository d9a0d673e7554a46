"""``torch.cond`` and ``while_loop``: the branch that is taken runs as it stands in the script, and every operator of it is seen.

Torch runs them through its compiler, which is passed over here, and then as one operator, whose inside no recorder sees.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from memfit.torch_compat.dispatch import CONTROL_FLOW
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.replace(torch, "cond", _cond)
    for name, stand_in in (("cond", _cond), ("while_loop", _while_loop)):
        for module in CONTROL_FLOW[name]:
            patches.when_imported(module, functools.partial(_replace, patches, name, stand_in))


def _replace(patches: Patches, name: str, stand_in: Callable[..., Any], module: Any) -> None:
    patches.replace(module, name, stand_in)


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried)):
        given = body_fn(*carried)
        carried = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return carried
