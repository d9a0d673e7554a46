"""Where the GPU's results lie, and what its backward does in place."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.phantom.kernels import convolution as convolutions
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


def test_group_norm_undoes_channels_last():
    with phantom():
        x = torch.randn(2, 8, 4, 4, device="cuda").to(memory_format=torch.channels_last)
        assert nn.GroupNorm(4, 8).cuda()(x).is_contiguous()


def test_convolutions_lay_out_anew():
    """Sizes measured: everything once more, to within the bytes of a header; channels of half types in eights."""
    x, weight = torch.empty(32, 3, 224, 224, device="meta"), torch.empty(64, 3, 7, 7, device="meta")
    out = torch.empty(32, 64, 112, 112, device="meta")
    rest = (None, [2, 2], [3, 3], [1, 1], False, [0, 0], 1)
    (single,) = convolutions.forward(H200, (x, weight, *rest), out)
    (half,) = convolutions.forward(H200, (x.bfloat16(), weight.bfloat16(), *rest), out.bfloat16())
    assert 0 <= 122065680 - single < 512
    assert 0 <= 77120528 - half < 512


def test_depthwise_convolutions_take_nothing():
    x, weight = torch.empty(2, 96, 56, 56, device="meta"), torch.empty(96, 1, 7, 7, device="meta")
    assert convolutions.forward(H200, (x, weight, None, [1, 1], [3, 3], [1, 1], False, [0, 0], 96), x) == ()


def peak_of(function) -> int:
    """Of a step that computes a gradient, above what was there before it."""

    def build():
        x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        return lambda: torch.autograd.grad(function(x).sum(), x)

    prediction = memfit.predict(build, steps=1)
    return prediction.steps[0].peak_allocated - 4 * 2**20


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.gather(1, torch.zeros(1024, 1, dtype=torch.int64, device="cuda")),
        lambda x: x.max(1).values,
        lambda x: x.topk(2, 1).values,
        lambda x: x.index_select(0, torch.zeros(4, dtype=torch.int64, device="cuda")),
        lambda x: x[torch.zeros(4, dtype=torch.int64, device="cuda")],
    ],
    ids=["gather", "max", "topk", "index_select", "index"],
)
def test_backward_writes_into_its_zeros(function):
    assert peak_of(function) < 5 * 2**20  # one gradient of 4 MiB, not two


def test_forward_does_not():
    def scattered(x):
        kept = torch.zeros_like(x)
        return kept.index_put((torch.zeros(4, dtype=torch.int64, device="cuda"),), x[:4], accumulate=True) + kept

    assert peak_of(scattered) >= 12 * 2**20


def test_copies_of_models_have_memory_of_their_own():
    with phantom():
        model = nn.Linear(4, 4).cuda()
        model.weight.grad = torch.ones_like(model.weight)
        copied = copy.deepcopy(model)
        assert isinstance(copied.weight, nn.Parameter)
        assert copied.weight.untyped_storage()._cdata != model.weight.untyped_storage()._cdata
        assert copied.weight.grad.shape == (4, 4)
        tied = copy.deepcopy([model.weight, model.weight])
        assert tied[0] is tied[1]


def test_a_mean_loss_holds_the_memory_of_all_losses():
    def build():
        x, y = (torch.randn(1024, 1024, device="cuda") for _ in range(2))
        kept = []
        return lambda: kept.append(nn.functional.mse_loss(x, y))

    after = memfit.predict(build, steps=2).steps
    assert after[1].peak_allocated - after[0].peak_allocated == 4 * 2**20


def test_rms_norm_is_one_kernel():
    def build():
        x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
        norm = nn.RMSNorm(1024, device="cuda")
        return lambda: norm(x).sum().backward()

    ops = {str(op) for op in memfit.predict(build, steps=1).ledger.strings}
    assert any("_fused_rms_norm_backward" in op for op in ops)


def test_transformers_does_not_believe_that_it_is_traced():
    import_utils = pytest.importorskip("transformers.utils.import_utils")
    with phantom():
        assert not import_utils.is_tracing(torch.ones(2, device="cuda"))
    assert import_utils.is_fake_tensor.__module__ == "transformers.utils.import_utils"


def test_a_mask_of_ones_hides_nothing():
    with phantom():
        mask = torch.ones(2, 8, dtype=torch.int64, device="cuda").bool()
        assert bool(mask.sum() == mask.numel())


def test_what_is_estimated_is_said():
    def build():
        layer, x = nn.Conv2d(8, 8, 3).cuda(), torch.randn(2, 8, 8, 8, device="cuda")
        return lambda: layer(x)

    assert any("convolutions were estimated" in sentence for sentence in memfit.predict(build, steps=1).assumptions)
