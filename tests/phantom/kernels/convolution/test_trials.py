"""What ``cudnn.benchmark`` takes at the first call of each shape: sizes as measured on an H200, and when they are taken."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memfit
from memfit.convolution import ConvGeometry
from memfit.ledger import EventKind
from memfit.phantom.kernels.convolution import trials
from memfit.phantom.kernels.convolution.trials import forward, input_gradient, weight_gradient
from memfit.units import GIB, MIB, format_bytes


def convolution(batch, channels, size, outputs, kernel, stride=1, padding=0, *, dtype="f32", channels_last=False, **more):
    sizes = size if isinstance(size, tuple) else (size, size)
    results = tuple((each + 2 * padding - kernel) // stride + 1 for each in sizes)
    known = {
        "images": (batch, channels, *sizes),
        "weight": (outputs, channels, kernel, kernel),
        "result": (batch, outputs, *results),
        "stride": (stride, stride),
        "padding": (padding, padding),
        "dilation": (1, 1),
        "dtype": dtype,
        "channels_last": channels_last,
    }
    return ConvGeometry(**(known | more))


@pytest.mark.parametrize(
    ("computes", "of", "measured"),
    [
        (forward, convolution(32, 64, 56, 64, 1), 207634432),
        (forward, convolution(32, 2048, 7, 512, 1), 2571108352),
        (forward, convolution(4, 1024, 32, 512, 3, padding=1), 17874026496),
        (forward, convolution(4, 256, (64, 80), 720, 3, padding=1), 24679628800),
        (input_gradient, convolution(32, 512, 7, 512, 3, padding=1), 1283457024),
        (input_gradient, convolution(4, 256, (64, 80), 36, 3, padding=1), 50274304),
        (input_gradient, convolution(32, 512, 14, 512, 3, 2, 1), 4953735184),
        (input_gradient, convolution(4, 2048, (16, 20), 256, 3, 2, 1), 9318314000),
        (input_gradient, convolution(32, 1024, 14, 2048, 1, 2), 72089616),
        (weight_gradient, convolution(32, 512, 7, 2048, 1), 2428764160),
        (weight_gradient, convolution(4, 64, 256, 2, 1), 141590528),
        (weight_gradient, convolution(4, 128, 256, 64, 3, padding=1), 454164480),
        (forward, convolution(32, 64, 56, 64, 3, padding=1, dtype="bf16", channels_last=True), 25766160),
        (input_gradient, convolution(32, 64, 56, 256, 1, dtype="bf16", channels_last=True), 64225296),
    ],
)
def test_the_largest_workspace_is_the_measured_one_to_the_byte(computes, of, measured):
    assert max(computes(of)) == measured


@pytest.mark.parametrize(
    "of",
    [
        convolution(8, 64, 56, 64, 3, padding=1, dtype="f16"),
        convolution(8, 64, 56, 64, 3, padding=1, channels_last=True),
        convolution(8, 64, 56, 64, 3, padding=1, dilation=(2, 2)),
        convolution(8, 64, 300, 64, 3, padding=1),
        convolution(8, 64, 56, 64, 1, padding=1),
    ],
)
def test_nothing_is_transformed_that_was_not_seen_to_be(of):
    assert len(forward(of)) == 1


def test_a_transposed_convolution_is_the_gradient_of_a_plain_one():
    x, weight = torch.empty(4, 64, 8, 8, device="meta"), torch.empty(64, 32, 4, 4, device="meta")
    out = torch.empty(4, 32, 16, 16, device="meta")
    options = ([2, 2], [1, 1], [1, 1])
    (transposed,) = trials.try_forward((x, weight, None, *options, True, [0, 0], 1), out)
    backward = (x, out, weight, None, *options, False, [0, 0], 1, [True, True, False])
    of_input, of_weight, of_bias = trials.try_backward(backward, (out, weight, None))
    assert transposed == of_input
    assert of_weight.key != of_input.key
    assert of_bias is None


def test_depthwise_convolutions_are_not_cudnns():
    x, weight = torch.empty(2, 96, 56, 56, device="meta"), torch.empty(96, 1, 7, 7, device="meta")
    assert trials.try_forward((x, weight, None, [1, 1], [3, 3], [1, 1], False, [0, 0], 96), x) == (None,)


def predict(measures, *, gpu="H200"):
    def build():
        torch.backends.cudnn.benchmark = measures
        layer = nn.Conv2d(512, 256, 3, padding=1).cuda()
        x = torch.randn(4, 512, 32, 32, device="cuda")

        def step():
            layer(x)
            layer(x[:, :, :16]).sum().backward()

        return step

    return memfit.predict(build, gpu=gpu, steps=2)


def test_only_the_first_call_of_a_shape_takes_it():
    plain, measured = predict(False), predict(True)
    largest = max(forward(convolution(4, 512, 32, 256, 3, padding=1)))
    assert largest > 4 * GIB
    assert 0 <= measured.steps[0].peak_allocated - largest < 64 * MIB
    assert measured.steps[1].peak_allocated == plain.steps[1].peak_allocated
    assert measured.steps[1].peak_reserved < GIB


def test_the_cache_is_emptied_after_each_of_them():
    kinds = [event for event in predict(True).ledger.events.kind if event == EventKind.EMPTY_CACHE]
    assert len(kinds) == 3  # two shapes forward, and a gradient of the weight


def test_what_was_assumed_is_said():
    largest = format_bytes(max(forward(convolution(4, 512, 32, 256, 3, padding=1))))
    assert any("cudnn.benchmark" in sentence and largest in sentence for sentence in predict(True).assumptions)
    assert not any("cudnn.benchmark" in sentence for sentence in predict(False).assumptions)


def test_kinds_that_were_not_measured_are_said():
    def build():
        torch.backends.cudnn.benchmark = True
        layer, x = nn.Conv1d(8, 8, 3).cuda(), torch.randn(2, 8, 64, device="cuda")
        return lambda: layer(x)

    assert any("were not measured" in sentence for sentence in memfit.predict(build, steps=1).assumptions)
    assert not any("were not measured" in sentence for sentence in predict(True).assumptions)


def test_a_gpu_without_room_takes_the_largest_that_it_has_room_for():
    def build():
        torch.backends.cudnn.benchmark = True
        layer, x = nn.Conv2d(1024, 512, 3, padding=1).cuda(), torch.randn(4, 1024, 32, 32, device="cuda")
        return lambda: layer(x)

    assert memfit.predict(build, gpu="H200", steps=1).peak_allocated > 16 * GIB
    small = memfit.predict(build, gpu="T4", steps=1)
    assert small.fits
    assert small.peak_allocated < GIB


def test_the_switch_of_a_run_is_its_own():
    predict(True)
    assert not torch.backends.cudnn.benchmark
