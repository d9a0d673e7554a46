"""What torch copies before and between the kernels of a convolution."""

from __future__ import annotations

import pytest
import torch

import memfit
from memfit.phantom.kernels.convolution import layouts
from memfit.phantom.kernels.convolution.layouts import conv_tensor

X, GRAD = 8 * 16 * 6 * 6 * 4, 8 * 32 * 6 * 6 * 4
WEIGHT = 32 * 16 * 3 * 3 * 4
LAST = torch.channels_last


def operands(x_last=False, weight_last=False, grad_last=False):
    tensors = (torch.empty(8, 32, 6, 6), torch.empty(8, 16, 6, 6), torch.empty(32, 16, 3, 3))
    return [
        tensor.to(memory_format=LAST) if is_last else tensor
        for tensor, is_last in zip(tensors, (grad_last, x_last, weight_last), strict=True)
    ]


def backward_copies(grad, x, weight, transposed=False, mask=(True, True, False)):
    """Of the whole call and of both of cuDNN's gradients, after the gradient of the input, before that of the weight."""
    nothing = [0] * (x.dim() - 2)
    args = (grad, x, weight, None, nothing, nothing, nothing, transposed, nothing, 1, mask)
    whole, held, before_input, before_weight, before_bias = layouts.copies_of_backward(args)
    assert (before_input, before_bias) == ((), ())
    return (*whole, *held), tuple(layouts.copies_after_input_gradient(args)), tuple(before_weight)


@pytest.mark.parametrize("last", [False, True])
def test_what_lies_well_is_not_copied(last):
    grad, x, weight = operands(last, last, last)
    assert layouts.copies_of_forward((x, weight)) == layouts.copies_after_result((x, weight)) == ()
    assert backward_copies(grad, x, weight) == ((), (), ())


def test_a_weight_with_channels_last_has_input_and_gradient_copied_for_both():
    grad, x, weight = operands(weight_last=True)
    assert layouts.copies_of_forward((x, weight)) == (X,)
    assert layouts.copies_after_result((x, weight)) == ()
    assert backward_copies(grad, x, weight) == ((X, GRAD), (), ())


def test_an_input_with_channels_last_has_the_weight_copied_by_each_kernel_that_reads_it():
    grad, x, weight = operands(x_last=True, grad_last=True)
    assert layouts.copies_of_forward((x, weight)) == ()
    assert layouts.copies_after_result((x, weight)) == (WEIGHT,)
    assert backward_copies(grad, x, weight) == ((), (WEIGHT,), ())


def test_without_a_gradient_of_the_weight_the_input_is_left_alone():
    grad, x, weight = operands(weight_last=True)
    assert backward_copies(grad, x, weight, mask=(True, False, False)) == ((), (GRAD,), ())


def test_copies_end_before_the_gradient_of_the_bias():
    """As in the trace of unfreezing.py, whose patches are turned: only an input of one dimension is kept until the end."""

    def build():
        layer = torch.nn.Conv2d(3, 64, 16, 16).cuda()
        images = torch.randn(8, 3, 64, 64, device="cuda")
        return lambda: layer(images).flatten(2).transpose(1, 2).contiguous().square().sum().backward()

    ledger = memfit.predict(build, gpu="H200", torch_version="2.11+cu130", steps=1).ledger
    sizes = ledger.events.size[ledger.birth]
    inside = [block for block, op in enumerate(ledger.blocks.op) if "convolution_backward" in ledger.strings[op]]
    copy = next(block for block in inside if sizes[block] == 8 * 64 * 16 * 4)
    bias = next(block for block in inside if sizes[block] == 64 * 4)
    assert ledger.birth[copy] < ledger.death[copy] < ledger.birth[bias]


def test_each_kernel_copies_a_gradient_with_gaps():
    """As in the trace of unet_amp, where the gradient is a part of that of a concatenation."""
    _, x, weight = operands()
    part = torch.empty(8, 48, 6, 6)[:, :32]
    assert backward_copies(part, x, weight) == ((), (GRAD,), (GRAD,))


def test_a_transposed_convolution_copies_it_once():
    x, grad, weight = operands()
    part = torch.empty(8, 48, 6, 6)[:, :16]
    assert part.shape == grad.shape
    assert backward_copies(part, x, weight, transposed=True) == ((X,), (), ())


def test_in_one_dimension_everything_is_made_contiguous():
    x, grad = torch.empty(4, 150, 24).transpose(1, 2), torch.empty(4, 150, 8).transpose(1, 2)
    weight = torch.empty(8, 24, 3)
    assert layouts.copies_of_forward((x, weight)) == (4 * 150 * 24 * 4,)
    assert backward_copies(grad, x, weight) == ((4 * 150 * 24 * 4, 4 * 150 * 8 * 4), (), ())


def test_float64_is_never_channels_last():
    _, x, weight = operands(x_last=True, weight_last=True)
    assert layouts.is_channels_last(x, weight)
    assert not layouts.is_channels_last(x.double(), weight.double())


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (2, 3, 4, 5, 6), (2, 1, 1, 5, 6)])
@pytest.mark.parametrize("last", [False, True])
def test_operands_lie_as_torch_says(shape, last):
    layout = (torch.channels_last if len(shape) == 4 else torch.channels_last_3d) if last else torch.contiguous_format
    for x in (torch.empty(shape), torch.empty(shape).to(memory_format=layout), torch.empty(*shape[:-1], shape[-1] + 1)[..., 1:]):
        assert conv_tensor(x).lies(last) == x.is_contiguous(memory_format=layout)
        assert conv_tensor(x).laid_out(last).lies(last)
