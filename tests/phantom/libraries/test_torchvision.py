"""Non-maximum suppression: what it takes follows from the boxes, what it keeps from what is expected."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

import memfit
from memfit.phantom.libraries.torchvision import _noting_weights, _sampled
from memfit.phantom.tensors.tensor_annotations import SHARE
from memfit.units import MIB

BOXES = "import torch\ndef nms(boxes, scores, iou_threshold):\n    return torch.ops.torchvision.nms(boxes, scores, iou_threshold)\n"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """With the names of the real one: it has compiled parts for each version of torch."""
    for name, text in {"__init__.py": "", "ops/__init__.py": "from .boxes import nms\n", "ops/boxes.py": BOXES}.items():
        path = tmp_path / "torchvision" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    held = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchvision"}
    for name in held:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules.update(held)


@pytest.mark.parametrize(("expected", "num_kept"), [({}, 6400), ({"boxes": 300}, 300), ({"boxes": 0.5}, 3200)])
def test_what_is_kept_and_what_is_taken(package, expected, num_kept):
    kept = []

    def build():
        from torchvision.ops import nms

        boxes, scores = torch.empty(6400, 4, device="cuda"), torch.empty(6400, device="cuda")

        def step():
            kept.append(nms(boxes, scores, 0.5).shape)

        return step

    prediction = memfit.predict(build, gpu="T4", expected=expected, steps=1)
    assert kept == [(num_kept,)]
    assert any("what non-maximum suppression keeps" in sentence for sentence in prediction.assumptions)
    words = 6400 * 100 * 8
    assert words <= prediction.peak_allocated < words + MIB


@pytest.mark.parametrize(("is_loaded", "num_objects", "share"), [(False, 8, 8 / 512), (False, 300, 0.25), (True, 8, 0.25)])
def test_regions_of_an_untrained_detector_hold_the_objects_themselves(is_loaded, num_objects, share):
    labels = torch.empty(512)
    heads = SimpleNamespace(fg_bg_sampler=SimpleNamespace(positive_fraction=0.25))
    if is_loaded:
        _noting_weights(lambda heads, state, prefix: None)(heads, {}, "roi_heads.")
    _sampled(lambda heads, proposals, targets: (None, None, [labels]))(heads, [], [{"boxes": torch.empty(num_objects, 4)}])
    assert getattr(labels, SHARE) == share
