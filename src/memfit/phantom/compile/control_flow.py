"""``torch.cond`` and ``while_loop``: the branch that is taken runs as it stands in the script, and every operator of it is seen.

Torch runs them through its compiler, which is passed over here, and then as one operator, whose inside no recorder sees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.torch_compat.patches import Patches

WHILE_LOOP = "torch._higher_order_ops.while_loop"


def install(patches: Patches) -> None:
    patches.replace(torch, "cond", _cond)
    patches.when_imported("torch._higher_order_ops.cond", lambda module: patches.replace(module, "cond", _cond))
    patches.when_imported(WHILE_LOOP, lambda module: patches.replace(module, "while_loop", _while_loop))
    patches.when_imported("torch._higher_order_ops", lambda module: patches.replace(module, "while_loop", _while_loop))


def _cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    return true_fn(*operands) if bool(pred) else false_fn(*operands)


def _while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    carried = tuple(carried_inputs)
    while bool(cond_fn(*carried)):
        given = body_fn(*carried)
        carried = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    return carried
