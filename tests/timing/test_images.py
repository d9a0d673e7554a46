"""Convolutions and what stands around them: physics, how the price is made up, and what an H200 did."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memfit.convolution import ConvPass
from memfit.hardware import Gpu, find_gpu, gpus
from memfit.timing.basis import rates_of
from memfit.timing.operators.calls import Call, Operand
from memfit.timing.operators.images.convolution import turning_seconds
from memfit.timing.operators.images.depthwise import is_of_cudnn
from memfit.timing.operators.images.work import work_of
from memfit.timing.operators.prices import KernelSettings, least_seconds, price

H200 = find_gpu("H200")
TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth" / "convolution_times.json.gz"
CHANNELS = st.sampled_from((1, 3, 8, 24, 64, 96, 256, 1000))


def last(operand: Operand) -> Operand:
    """The same with channels innermost."""
    _, channels, height, width = operand.shape
    return Operand(operand.dtype, operand.shape, (channels * height * width, 1, width * channels, channels))


def turned(operand: Operand) -> float:
    return turning_seconds(operand.shape, operand.item_bytes, H200, rates_of(H200))


def convolution(
    dtype: str,
    batch: int,
    inputs: int,
    side: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    *,
    is_last: bool = False,
) -> Call:
    padding = kernel // 2
    result_side = (side + 2 * padding - kernel) // stride + 1
    images, weight, result = (
        Operand(dtype, shape)
        for shape in (
            (batch, inputs, side, side),
            (outputs, inputs // groups, kernel, kernel),
            (batch, outputs, result_side, result_side),
        )
    )
    if is_last:
        images, weight, result = last(images), last(weight), last(result)
    options = ((stride,) * 2, (padding,) * 2, (1, 1), False, (0, 0), groups)
    return Call("convolution", (images, weight, None, *options), (result,))


def gradients(forward: Call, images: bool, weights: bool, bias: bool = False) -> Call:
    given_images, weight, _, *options = forward.arguments
    (result,) = forward.results
    asked = (images, weights, bias)
    made = (given_images if images else None, weight if weights else None, None)
    return Call("convolution_backward", (result, given_images, weight, (0,), *options, asked), made)


@given(
    st.sampled_from(("f32", "bf16", "f16", "f64")),
    st.integers(1, 64),
    CHANNELS,
    st.integers(1, 120),
    CHANNELS,
    st.sampled_from((1, 3, 5, 7, 33)),
    st.sampled_from((1, 2)),
    st.sampled_from((1, 2, 8)),
    st.booleans(),
    st.booleans(),
    st.sampled_from(gpus()),
)
def test_no_convolution_is_faster_than_physics(
    dtype: str,
    batch: int,
    inputs: int,
    side: int,
    outputs: int,
    kernel: int,
    stride: int,
    groups: int,
    is_last: bool,
    tf32: bool,
    chip: Gpu,
) -> None:
    assume(inputs % groups == 0 and outputs % groups == 0)
    forward = convolution(dtype, batch, inputs, side, outputs, kernel, stride, groups, is_last=is_last)
    settings = KernelSettings(convolution_tf32=tf32)
    peak = chip.tf32_flops if dtype == "f32" and tf32 else chip.product_flops(dtype)
    flops = 2 * forward.outputs[0].numel * inputs // groups * kernel**2
    for call, parts in ((forward, 1), (gradients(forward, True, False), 1), (gradients(forward, True, True), 2)):
        cost = price(call, chip, settings)
        assert cost.flops == parts * flops
        assert math.isfinite(cost.seconds)
        assert cost.seconds >= max(cost.flops / peak, least_seconds(call, chip, settings))


@given(
    st.sampled_from(("f32", "bf16")),
    st.integers(1, 40),
    CHANNELS,
    st.integers(1, 60),
    st.sampled_from((1, 3, 7)),
    st.booleans(),
    st.booleans(),
)
def test_more_images_are_not_faster(
    dtype: str, batch: int, channels: int, side: int, kernel: int, is_last: bool, is_depthwise: bool
) -> None:
    groups = channels if is_depthwise else 1
    fewer, more = (
        convolution(dtype, count, channels, side, channels, kernel, groups=groups, is_last=is_last) for count in (batch, 2 * batch)
    )
    for call, larger in ((fewer, more), (gradients(fewer, True, True), gradients(more, True, True))):
        assert price(larger, H200).seconds >= price(call, H200).seconds * (1 - 1e-9)


def test_cudnn_has_most_kernels_for_single_channels_of_float16() -> None:
    """``use_cudnn_depthwise``: with channels first, too, of one step, or of two and many channels."""

    def of_cudnn(dtype: str, channels: int, kernel: int, stride: int, side: int = 28, is_last: bool = False) -> bool:
        forward = convolution(dtype, 8, channels, side, channels, kernel, stride, groups=channels, is_last=is_last)
        return is_of_cudnn(work_of(forward, allow_tf32=False)[0])

    assert of_cudnn("bf16", 64, 7, 1, is_last=True)
    assert not of_cudnn("bf16", 64, 3, 1)
    assert [of_cudnn("f16", 64, kernel, 1) for kernel in (3, 5, 7)] == [True, True, False]
    assert [of_cudnn("f16", channels, 3, 2) for channels in (128, 256)] == [False, True]
    assert not of_cudnn("f16", 256, 3, 2, side=14)
    assert not of_cudnn("f16", 16, 3, 1)
    assert not of_cudnn("f16", 64, 3, 1, side=6)


def test_rows_of_channels_are_normed_as_images_with_channels_last() -> None:
    rows, image = Operand("f16", (100_352, 384)), last(Operand("f16", (512, 384, 14, 14)))
    each = Operand("f32", (384,))
    costs = [
        price(Call("native_batch_norm", (x, each, each, each, each, True, 0.1, 1e-5), (x, each, each)), H200) for x in (rows, image)
    ]
    assert costs[0].seconds == pytest.approx(costs[1].seconds)


def test_the_three_computations_are_told_apart() -> None:
    forward = convolution("bf16", 8, 64, 32, 128, 3, 2, groups=4)
    work, passes = work_of(forward, allow_tf32=False)
    assert passes == (ConvPass.FORWARD,)
    assert (work.groups, work.steps, work.taps, work.inputs, work.outputs) == (4, 4, 9, 64, 128)
    for asked, expected in (
        ((True, True), (ConvPass.IMAGES, ConvPass.WEIGHTS)),
        ((False, True), (ConvPass.WEIGHTS,)),
        ((True, False), (ConvPass.IMAGES,)),
    ):
        assert work_of(gradients(forward, *asked), allow_tf32=False)[1] == expected
    both, images, weights = (
        price(gradients(forward, *asked), H200).seconds for asked in ((True, True), (True, False), (False, True))
    )
    assert both == pytest.approx(images + weights)


def test_a_transposed_convolution_costs_what_the_gradient_of_a_plain_one_does() -> None:
    plain = convolution("bf16", 8, 64, 32, 128, 2, 2)
    small, weight = Operand("bf16", (8, 128, 17, 17)), plain.inputs[1]
    large = plain.inputs[0]
    assert plain.outputs[0].shape == small.shape
    transposed = Call("convolution", (small, weight, None, (2, 2), (1, 1), (1, 1), True, (0, 0), 1), (large,))
    assert price(transposed, H200).seconds == pytest.approx(price(gradients(plain, True, False), H200).seconds)


def test_channels_first_is_channels_last_and_three_tensors_turned() -> None:
    first, already = (convolution("bf16", 32, 128, 28, 256, 3, is_last=is_last) for is_last in (False, True))
    turning = sum(turned(tensor) for tensor in (*first.inputs, *first.outputs))
    assert price(first, H200).seconds == pytest.approx(price(already, H200).seconds + turning)


def test_a_tile_that_is_mostly_empty_takes_as_long_to_turn_as_a_full_one() -> None:
    """Tiles have 32 channels and 32 pixels: kernels of three by three fill 9 of 32."""
    kernel, full = Operand("bf16", (1024, 1024, 3, 3)), Operand("bf16", (1024, 1024, 4, 8))
    assert turned(kernel) == pytest.approx(turned(full), rel=0.2)


def test_a_tensor_that_lies_otherwise_is_copied_first() -> None:
    mixed = convolution("bf16", 32, 128, 28, 256, 3)
    images, weight, *rest = mixed.arguments
    assert isinstance(weight, Operand)
    assert isinstance(images, Operand)
    mixed = Call("convolution", (images, last(weight), *rest), (last(mixed.outputs[0]),))
    already = convolution("bf16", 32, 128, 28, 256, 3, is_last=True)
    copy = price(Call("clone", (images,), (last(images),)), H200).seconds
    assert price(mixed, H200).seconds == pytest.approx(price(already, H200).seconds + copy)


def test_a_bias_is_added_by_a_kernel_of_its_own() -> None:
    without = convolution("bf16", 32, 128, 28, 256, 3)
    images, weight, _, *rest = without.arguments
    biased = Call("convolution", (images, weight, Operand("bf16", (256,)), *rest), without.results)
    moved = 2 * without.outputs[0].size_bytes
    assert price(biased, H200).seconds - price(without, H200).seconds >= moved / H200.memory_bandwidth
    backward = gradients(without, True, True)
    with_bias = Call(backward.operator, (*backward.arguments[:-1], (True, True, True)), backward.results)
    assert price(with_bias, H200).seconds > price(backward, H200).seconds


def test_small_groups_are_multiplied_together() -> None:
    """Thirty-two groups of four channels cost as four of thirty-two do: zeros between them fill the same chunks."""
    four, thirty_two = (convolution("f32", 32, 128, 56, 128, 3, groups=groups, is_last=True) for groups in (32, 4))
    assert price(four, H200).seconds == pytest.approx(price(thirty_two, H200).seconds, rel=0.1)


def test_long_kernels_in_groups_are_an_assumption() -> None:
    """wav2vec 2.0's: 31 milliseconds on an H200, which no other price would come near."""
    images, weight = Operand("bf16", (4, 768, 149)), Operand("bf16", (768, 48, 128))
    call = Call("convolution", (images, weight, None, (1,), (64,), (1,), False, (0,), 16), (Operand("bf16", (4, 768, 150)),))
    assert "groups" in price(call, H200).assumption
    assert price(call, H200).seconds > 5e-3
    short = Call("convolution", (images, Operand("bf16", (768, 48, 19)), *call.arguments[2:]), (images,))
    assert not price(short, H200).assumption
    assert price(short, H200).seconds < 1e-4


def test_few_channels_leave_multiprocessors_without_work() -> None:
    def per_element(channels: int) -> float:
        images = Operand("bf16", (32, channels, 112, 112))
        return price(Call("native_batch_norm", (images,), (images,)), H200).seconds / images.numel

    assert per_element(16) > 4 * per_element(128)


def test_a_window_larger_than_the_image_is_the_image() -> None:
    images, pooled = Operand("bf16", (32, 1280, 7, 7)), Operand("bf16", (32, 1280, 1, 1))
    for window in (7, 1280):
        seconds = price(Call("avg_pool2d_backward", (pooled, images, (window, window)), (images,)), H200).seconds
        assert 2e-5 < seconds < 2e-4


def test_planes_are_resized_one_after_the_other() -> None:
    def seconds(side: int) -> float:
        given, result = Operand("f32", (32, 256, side, side)), Operand("f32", (32, 256, 2 * side, 2 * side))
        return price(Call("upsample_bilinear2d", (given, (2 * side, 2 * side), False), (result,)), H200).seconds

    assert seconds(7) == pytest.approx(seconds(14))
    assert seconds(14) == pytest.approx(3e-3, rel=0.1)


def test_narrow_rows_cost_as_much_as_wider_ones() -> None:
    def seconds(columns: int) -> float:
        rows = Operand("bf16", (100_000, columns))
        return price(Call("native_layer_norm", (rows, (columns,)), (rows,)), H200).seconds

    assert seconds(96) < 1.3 * seconds(32)


MEDIANS = {
    "convolution": 0.15,
    "images": 0.20,
    "weights": 0.17,
    "convolution, depthwise": 0.13,
    "images, depthwise": 0.16,
    "weights, depthwise": 0.13,
    "convolution, groups": 0.15,
    "images, groups": 0.30,
    "weights, groups": 0.40,
    "cudnn_batch_norm": 0.15,
    "cudnn_batch_norm_backward": 0.12,
    "native_batch_norm": 0.15,
    "native_batch_norm_backward": 0.12,
    "native_layer_norm": 0.08,
    "native_layer_norm_backward": 0.15,
    "max_pool2d_with_indices": 0.12,
    "max_pool2d_with_indices_backward": 0.15,
    "avg_pool2d": 0.10,
    "avg_pool2d_backward": 0.10,
    "upsample_nearest2d": 0.10,
    "upsample_nearest2d_backward": 0.12,
    "upsample_bilinear2d": 0.10,
    "upsample_bilinear2d_backward": 0.25,
    "_cudnn_rnn": 0.20,
    "_cudnn_rnn_backward": 0.20,
}
"""How far the median call of a kind may be from its measurement, of those that were fitted and of those that were not alike."""


def kind_of(call: Call) -> str:
    if call.name not in ("convolution", "convolution_backward"):
        return call.name
    work, (way,) = work_of(call, allow_tf32=True)
    asked = call.arguments[-1]
    name = "convolution" if call.name == "convolution" else "images" if isinstance(asked, tuple) and asked[0] else "weights"
    assert way
    return f"{name}{', depthwise' if work.is_depthwise else ', groups' if work.groups > 1 else ''}"


def test_prices_are_near_what_an_h200_did_also_where_they_were_not_fitted() -> None:
    errors: dict[tuple[str, bool], list[float]] = {}
    for name, case in json.loads(gzip.decompress(TRUTH.read_bytes()))["cases"].items():
        is_held_out = hashlib.sha256(name.encode()).digest()[-1] % 3 == 0
        for text, entry in case["calls"].items():
            call = Call.parse(text)
            if "hot" in entry and (call.name in MEDIANS or call.name == "convolution_backward"):
                seconds = 1e-6 * math.sqrt(max(entry["hot"], 0.5) * max(entry.get("cold", entry["hot"]), 0.5))
                cost = price(call, H200, KernelSettings(convolution_tf32=case["tf32"], is_sustained=False))
                errors.setdefault((kind_of(call), is_held_out), []).append(abs(math.log(cost.seconds / seconds)))
    assert {kind for kind, _ in errors} == MEDIANS.keys()
    far = {key: statistics.median(found) for key, found in errors.items() if statistics.median(found) > MEDIANS[key[0]]}
    assert not far
