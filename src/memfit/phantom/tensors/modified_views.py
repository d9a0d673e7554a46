"""Gradients of views that were changed in place.

::

    y = norm(x).view(shape); y.relu_(); z = conv(y)         the view's history is written anew
    z.backward()                 a GPU: as_strided          zeros as large as what y is a view of, and the gradient copied into them
                                 here: the views again      nothing, since tensors without data are asked by Python

Where a view shows less than the whole, going back through it makes such zeros here as well.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from memfit.torch_compat.autograd import ENGINE_RUNS
from memfit.torch_compat.patches import Patches


class ModifiedViews:
    """Those that are alive and have not been seen by a backward pass."""

    def __init__(self) -> None:
        self._views: dict[int, weakref.ref[torch.Tensor]] = {}

    def note(self, view: torch.Tensor) -> None:
        """A view is changed in place, where gradients are recorded; its history is not written yet."""
        number = id(view)
        self._views[number] = weakref.ref(view, lambda gone: self._views.pop(number, None))

    def watch_passes(self, patches: Patches) -> None:
        """Before each backward pass, what a GPU would do with gradients of these views is asked of their histories."""
        for module, name in ENGINE_RUNS:
            patches.wrap(module, name, lambda run: functools.partial(self._run, run))

    def _run(self, run: Any, *args: Any, **kwargs: Any) -> Any:
        for reference in [*self._views.values()]:
            view = reference()
            if view is not None and view._base is not None and view.numel() == view._base.numel() and view.grad_fn is not None:
                view.grad_fn.register_prehook(_copied_into_zeros)
        self._views.clear()
        return run(*args, **kwargs)


def _copied_into_zeros(gradients: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    return tuple(gradient if gradient is None else torch.zeros_like(gradient).copy_(gradient) for gradient in gradients)
