"""Where backward works in place.

::

    gather, x[i], index_select, max, topk, sort    backward: zeros, into which the gradient is added

Torch's own formulas write into those zeros. Under a dispatch mode they make a second tensor instead, lest a subclass be surprised
(ATen/TensorSubclassLikeUtils.h); here nobody is, and the run being predicted has no mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from memfit.torch_compat.autograd import graph_task_id

aten = torch.ops.aten


def answers() -> dict[Any, Callable[..., Any]]:
    return {
        aten.scatter.src: _into_first,
        aten.scatter_add.default: _into_first,
        aten.index_add.default: _into_first,
        aten.masked_scatter.default: _into_first,
        aten.index_put.default: _index_put,
    }


def _into_first(target: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Recomputed forwards have gradients enabled; backward itself has not."""
    return target if graph_task_id() != -1 and not torch.is_grad_enabled() else NotImplemented


def _index_put(target: torch.Tensor, indices: Any, values: torch.Tensor, accumulate: bool = False) -> Any:
    return _into_first(target) if accumulate else NotImplemented
