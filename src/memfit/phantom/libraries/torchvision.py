"""torchvision: how many boxes non-maximum suppression keeps depends on them; what it takes does not. And how many regions of those
that a head is trained on show an object: as many as its sampler aims at, as where there are enough of them.

``nms_kernel`` (torchvision/csrc/ops/cuda/nms_kernel.cu) sorts the scores, copies the boxes in that order, and writes for each box a
bit for every other one, 64 to a word. The words go to the host, which decides, and the indices of what is kept come back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

from memfit.phantom.current import current
from memfit.phantom.tensors.tensor_annotations import SHARE
from memfit.phantom.torch_cuda.autocast import KEY as AUTOCAST
from memfit.phantom.values.routing import MaskShare
from memfit.torch_compat.dispatch import DispatchKey, DispatchKeySet, excluding_keys, tree_map_only
from memfit.torch_compat.patches import Patches

WORD_BITS: Final = 64


def install(patches: Patches) -> None:
    for name in ("torchvision.ops.boxes", "torchvision.ops"):
        patches.when_imported(name, lambda module: patches.wrap(module, "nms", _around))
    patches.when_imported("torchvision", lambda module: _install_autocast(patches))
    patches.when_imported("torchvision.models.detection.roi_heads", lambda module: _install_sampling(patches, module.RoIHeads))


CAST: Final = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool")
"""Under autocast they work in float32, and give what they were given (torchvision/csrc/ops/autocast)."""


def _install_autocast(patches: Patches) -> None:
    for name in CAST:
        if hasattr(torch.ops.torchvision, name):
            patches.implement(AUTOCAST, f"torchvision::{name}", _in_float32(getattr(torch.ops.torchvision, name).default))


def _in_float32(operator: Any) -> Callable[..., Any]:
    def call(features: torch.Tensor, regions: torch.Tensor, *args: Any) -> Any:
        with excluding_keys(DispatchKeySet(getattr(DispatchKey, AUTOCAST))):
            found = operator(features.float(), regions.float(), *args)
            back = functools.partial(torch.Tensor.to, dtype=features.dtype)
            return tree_map_only(torch.Tensor, lambda part: back(part) if part.is_floating_point() else part, found)

    return call


def _install_sampling(patches: Patches, heads: Any) -> None:
    patches.wrap(heads, "select_training_samples", _sampled)
    patches.wrap(heads, "_load_from_state_dict", _noting_weights)


_HAS_WEIGHTS: Final = "_memfit_has_weights"


def _noting_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    def _load_from_state_dict(heads: Any, state: Any, prefix: str, *args: Any) -> Any:
        heads.__dict__[_HAS_WEIGHTS] = True
        return original(heads, state, prefix, *args)

    return _load_from_state_dict


def _sampled(original: Callable[..., Any]) -> Callable[..., Any]:
    """Which of the sampled regions hold an object.

    A region does if it overlaps one by half. The boxes of the objects themselves are added to the regions that a network
    proposes (``RoIHeads.add_gt_proposals``), so there are never fewer. Regions of a network that has learned nothing lie anywhere,
    and hardly one more does (counted on a CPU: 10 to 12 where an image has 8 objects). A trained network proposes many; the
    sampler takes no more than its share.
    """

    def select_training_samples(heads: Any, proposals: Any, targets: Any) -> Any:
        selected = original(heads, proposals, targets)
        fraction = heads.fg_bg_sampler.positive_fraction
        for labels, target in zip(selected[2], targets, strict=True):
            share = MaskShare.because(fraction, "the share of objects that the sampler aims at")
            if _HAS_WEIGHTS not in heads.__dict__:
                own = min(fraction, len(target["boxes"]) / max(1, labels.numel()))
                why = f"the objects themselves: no weights were loaded, and a trained network finds up to {fraction:.0%}"
                share = MaskShare.because(own, why)
            setattr(labels, SHARE, share)
        return selected

    return select_training_samples


def _around(original: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
        if not boxes.is_cuda or boxes.is_quantized or not boxes.numel():
            return original(boxes, scores, iou_threshold)
        return _nms(boxes, scores)

    nms.is_answered = True  # type: ignore[attr-defined]
    return original if getattr(original, "is_answered", False) else nms


def _nms(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    order: Any = scores.sort(0, descending=True)[1]
    in_order = boxes.index_select(0, order).contiguous()
    num_boxes = boxes.shape[0]
    words = torch.empty((num_boxes * -(-num_boxes // WORD_BITS),), dtype=torch.int64, device=boxes.device)
    del in_order, words
    kept = torch.empty((current().count("boxes", "what non-maximum suppression keeps", num_boxes),), dtype=torch.int64)
    found: torch.Tensor = order[kept.to(boxes.device)]
    return found
