"""Convolutions: how results lie in memory, and what cuDNN takes."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from benchmarks.kernels.cudnn_on_gpu import convolution_errors, is_near
from memfit.phantom.kernels.convolution import rules
from memfit.phantom.target import Target

H200 = Target.parse("H200", "2.11+cu130")


def test_convolutions_keep_channels_last():
    with phantom():
        layer = nn.Conv2d(16, 32, 3, stride=2, padding=1).cuda().to(memory_format=torch.channels_last)
        x = torch.randn(2, 16, 9, 9, device="cuda", requires_grad=True)
        out = layer(x)
        assert out.shape == (2, 32, 5, 5)
        assert out.is_contiguous(memory_format=torch.channels_last)
        out.sum().backward()
        assert layer.weight.grad.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("transposed", [False, True])
def test_their_shapes_are_torchs(transposed):
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    plain = kind(4, 8, 3, stride=2, padding=1)(torch.empty(2, 4, 11, 7))
    with phantom():
        layer = kind(4, 8, 3, stride=2, padding=1).cuda().to(memory_format=torch.channels_last)
        out = layer(torch.randn(2, 4, 11, 7, device="cuda"))
        assert (out.shape, out.stride(1)) == (plain.shape, 1)


def test_kernels_of_one_by_one_ask_by_their_strides():
    with phantom():
        x, layer = torch.randn(2, 16, 9, 9, device="cuda"), nn.Conv2d(16, 32, 1).cuda()
        assert layer(x).is_contiguous()
        assert layer.to(memory_format=torch.channels_last)(x).is_contiguous(memory_format=torch.channels_last)


def test_convolutions_lay_out_anew():
    """Sizes measured: everything once more, to within the bytes of a header; channels of half types in eights."""
    x, weight = torch.empty(32, 3, 224, 224, device="meta"), torch.empty(64, 3, 7, 7, device="meta")
    out = torch.empty(32, 64, 112, 112, device="meta")
    rest = (None, [2, 2], [3, 3], [1, 1], False, [0, 0], 1)
    (single,) = rules.forward(H200, (x, weight, *rest), out)
    (half,) = rules.forward(H200, (x.bfloat16(), weight.bfloat16(), *rest), out.bfloat16())
    assert 0 <= 122065680 - single < 512
    assert 0 <= 77120528 - half < 512


def test_depthwise_convolutions_take_nothing():
    x, weight = torch.empty(2, 96, 56, 56, device="meta"), torch.empty(96, 1, 7, 7, device="meta")
    assert rules.forward(H200, (x, weight, None, [1, 1], [3, 3], [1, 1], False, [0, 0], 96), x) == ()


def test_what_is_estimated_is_said():
    def build():
        layer, x = nn.Conv2d(8, 8, 3).cuda(), torch.randn(2, 8, 8, 8, device="cuda")
        return lambda: layer(x)

    assert any("convolutions were estimated" in sentence for sentence in memfit.predict(build, steps=1).assumptions)


def gradient_of_weight(x, outputs, kernel=1, stride=1, padding=0):
    weight = torch.empty(outputs, x.shape[1], kernel, kernel, device="meta")
    rest = (None, [stride, stride], [padding, padding], [1, 1], False, [0, 0], 1)
    grad = torch.ops.aten.convolution(x, weight, *rest)
    _, (*_, size), _ = rules.backward(H200, (grad, x, weight, *rest, [True, True, False]), (x, weight, None))
    return size


@pytest.mark.parametrize(("batch", "size", "measured"), [(4, (32, 40), 4194704), (8, (28, 28), 8389008), (32, (14, 14), 33554432)])
def test_products_in_float32_have_a_part_for_each_image(batch, size, measured):
    assert 0 <= measured - gradient_of_weight(torch.empty(batch, 1024, *size, device="meta"), 256) < 512


@pytest.mark.parametrize(
    ("shape", "outputs", "measured"),
    [((32, 512, 28, 28), 256, 17301760), ((4, 1024, 32, 40), 512, 16777472), ((4, 64, 128, 160), 256, 8651008)],
)
def test_products_in_float32_with_channels_last_have_two_tiles_for_each_sm(shape, outputs, measured):
    x = torch.empty(shape, device="meta").to(memory_format=torch.channels_last)
    assert 0 <= measured - gradient_of_weight(x, outputs) < 512


def test_images_of_one_pixel_are_not_summed_in_parts():
    assert gradient_of_weight(torch.empty(32, 1024, 1, 1, device="meta"), 256) < 512 * 1024


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_large_kernel_on_images_lays_all_out_anew_whatever_the_layout(layout):
    """Measured: 134522000 and 134522000; how many parts of the weight there are is not known."""
    x = torch.empty(32, 3, 224, 224, device="meta").to(memory_format=layout)
    assert 0 <= 134522000 - gradient_of_weight(x, 64, 7, 2, 3) < 6 * 2**20


def taken_by(shape, weight_shape, groups=1, dtype=torch.bfloat16, layout=torch.contiguous_format, stride=1):
    """What forward, the gradient of the input and that of the weight take in sum."""
    x = torch.empty(shape, dtype=dtype, device="meta").to(memory_format=layout)
    weight = torch.empty(weight_shape, dtype=dtype, device="meta").to(memory_format=layout)
    padding = weight_shape[-1] // 2
    options = ([stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups)
    out = torch.ops.aten.convolution(x, weight, None, *options).to(memory_format=layout)
    of_input, of_weight, _ = rules.backward(H200, (out, x, weight, None, *options, [True, True, False]), (x, weight, None))
    return sum(rules.forward(H200, (x, weight, None, *options), out)), sum(of_input), sum(of_weight)


def test_groups_are_laid_out_anew_with_a_power_of_two_of_channels():
    plain = 2 * 300 * 300 * 8 * 32 * 2  # 8 groups of 20 channels, two tensors of two bytes an element
    assert taken_by((1, 160, 300, 300), (160, 20, 3, 3), 8, layout=torch.channels_last)[0] == plain + 8 * 32 * 32 * 9 * 2
    assert taken_by((16, 512, 25, 25), (512, 16, 3, 3), 32, layout=torch.channels_last) == (0, 0, 0)
    assert taken_by((8, 512, 112, 112), (512, 16, 3, 3), 32)[1] == 2 * 8 * 512 * 112 * 112 * 2 + 512 * 16 * 9 * 2


def test_the_gradient_of_a_product_is_summed_in_a_part_for_each_image():
    assert taken_by((64, 128, 32, 32), (128, 128, 1, 1)) == (0, 0, 64 * 4 * 128 * 128)
    assert taken_by((4, 1024, 64, 64), (1024, 1024, 1, 1)) == (0, 0, 4 * 4 * 1024 * 1024)


def test_short_sums_of_float32_are_computed_as_they_lie():
    """As in RegNet, where 32 and 128 channels are left alone, and 192 are not."""
    single = {"dtype": torch.float32, "stride": 2}
    assert taken_by((32, 32, 112, 112), (128, 32, 1, 1), **single)[0] == 0
    assert taken_by((32, 192, 28, 28), (512, 192, 1, 1), **single)[0] == 32 * (192 * 28 * 28 + 512 * 14 * 14) * 4


def test_few_channels_of_half_types_are_copied_only_for_many_uses():
    """Measured of MobileNet's first layer, and of ResNet's."""
    assert taken_by((32, 3, 224, 224), (32, 3, 3, 3), stride=2)[0] == 0
    assert taken_by((32, 3, 224, 224), (64, 3, 7, 7), stride=2)[0] > 77_000_000


def test_parts_that_are_much_larger_than_the_data_are_not_taken():
    """Measured of RegNet's last layers, and of MobileNet's: 960 channels become 160, or 160 become 960."""
    data = 32 * 2 * 1088 * 7 * 7 * 4
    assert taken_by((32, 1088, 7, 7), (1088, 1088, 1, 1), dtype=torch.float32) == (data, 0, data)
    assert taken_by((32, 512, 14, 14), (1088, 512, 1, 1), dtype=torch.float32)[2] == 71303168
    assert taken_by((32, 960, 7, 7), (160, 960, 1, 1))[2] == 32 * 7 * 7 * (160 + 960) * 2
    assert taken_by((32, 160, 7, 7), (960, 160, 1, 1))[2] == 32 * 960 * 160 * 4


def test_thin_products_over_large_images_are_laid_out_anew():
    """Measured: 258,672,527 bytes, with partial sums."""
    assert taken_by((32, 32, 112, 112), (128, 32, 1, 1), dtype=torch.float32)[2] == 32 * 160 * 112 * 112 * 4


@pytest.mark.parametrize(("shape", "transformed"), [((8, 320, 64, 64), 203489280), ((8, 320, 32, 32), 0)])
def test_large_gradients_whose_tiles_leave_sms_idle_are_transformed(shape, transformed):
    copies = 2 * 8 * 320 * shape[2] ** 2 * 4 + 320 * 320 * 9 * 4
    assert taken_by(shape, (320, 320, 3, 3), dtype=torch.float32)[2] == (transformed or copies)


@pytest.mark.parametrize(("size", "channels", "measured"), [(56, 96, 164079223), (28, 192, 96947263), (14, 384, 0), (7, 768, 0)])
def test_depthwise_convolutions_with_channels_last_are_cudnns(size, channels, measured):
    """The four stages of ConvNeXt in float32. In bfloat16 the kernel is torch's own."""
    shapes = (16, channels, size, size), (channels, 1, 7, 7)
    last = torch.channels_last
    of_result, of_input, of_weight = taken_by(*shapes, groups=channels, dtype=torch.float32, layout=last)
    assert (of_result, of_input) == (0, 0)
    assert 0 <= measured - of_weight < 8192  # counters beside the sums
    assert taken_by(*shapes, groups=channels, layout=last) == (0, 0, 0)


def test_copies_and_results_are_taken_in_torchs_order():
    """As in the trace of unet_amp: a gradient that is part of another has a copy for each kernel, the second before its result."""
    sizes = {}

    def build():
        layer = nn.Conv2d(16, 24, 3, padding=1, bias=False).cuda()
        x = torch.randn(2, 16, 40, 40, device="cuda", requires_grad=True)

        def step():
            torch.cat((layer(x), torch.zeros(2, 8, 40, 40, device="cuda")), 1).square().mean().backward()

        sizes.update(x=x.numel() * 4, grad=2 * 24 * 40 * 40 * 4, weight=layer.weight.numel() * 4)
        return step

    ledger = memfit.predict(build, steps=1).ledger
    of_backward = [block for block, op in enumerate(ledger.blocks.op) if "convolution_backward" in ledger.strings[op]]
    taken = [int(ledger.events.size[ledger.birth[block]]) for block in of_backward]
    assert taken[:2] == [sizes["x"], sizes["grad"]]
    assert taken[-3:-1] == [sizes["grad"], sizes["weight"]]


def test_most_measured_convolutions_are_near():
    near = [is_near(taken, predicted) for _, taken, predicted in convolution_errors()]
    assert len(near) == 3 * 9152
    assert sum(near) / len(near) > 0.765
