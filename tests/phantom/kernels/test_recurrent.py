"""Recurrent layers as cuDNN runs them; sizes from benchmarks/truth/kernel_memory.json."""

from __future__ import annotations

import json

import pytest
import torch
from helpers import ROOT
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from benchmarks.kernels.cudnn_on_gpu import recurrent_errors
from memfit.phantom.kernels.recurrent import GRU, LSTM, RNN_TANH, Sizes, dropout_state_bytes
from memfit.phantom.target import Target


@pytest.mark.parametrize(
    ("mode", "layers", "both_ways", "drops", "reserve"),
    [
        (LSTM, 1, False, False, 41943296),
        (LSTM, 2, False, False, 92274944),
        (LSTM, 2, True, False, 184549632),
        (LSTM, 2, False, True, 92537088),
        (GRU, 2, False, False, 109052160),
        (RNN_TANH, 2, False, False, 25166080),
    ],
)
def test_what_is_kept_for_backward(mode, layers, both_ways, drops, reserve):
    x = torch.empty(128, 32, 256, device="meta")
    settings = (512, 0, layers, False, 0.2 if drops else 0.0, True, both_ways, [], None)
    assert Sizes.of(x, mode, settings).reserve_bytes == reserve


def test_dropout_is_kept_past_the_ends_of_packed_sequences():
    """Of 60 batches on an H200 (benchmarks/workloads/whole/captioner.py), the first: 32 captions of up to 40 words, 674 in all."""
    batch_sizes = [32] * 10 + [20] * 2 + [15] * 10 + [9] * 16 + [10, 10]
    x = torch.empty(sum(batch_sizes), 512, device="meta")
    assert (len(batch_sizes), sum(batch_sizes)) == (40, 674)
    sizes = Sizes.of(x, LSTM, (1024, 0, 2, True, 0.3, True, False, batch_sizes, None))
    assert sizes.reserve_bytes == 30531840
    matrices = 4 * 4096 * (512 + 3 * 1024)
    assert sizes.workspace_bytes(matrices, is_forward=True) == pytest.approx(90874112, abs=512)


def test_small_parts_are_aligned():
    x = torch.empty(7, 3, 5, device="meta")
    assert Sizes.of(x, LSTM, (11, 0, 3, False, 0.0, True, True, [], None)).reserve_bytes == 31712


def test_the_states_of_dropout():
    assert dropout_state_bytes(Target.parse("H200", "2.11+cu130")) == 6488064


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layers_run_forward_and_backward(kind, dtype):
    with phantom():
        layer = kind(8, 16, 2, bidirectional=True, dropout=0.1).to("cuda", dtype)
        x = torch.randn(5, 3, 8, device="cuda", dtype=dtype, requires_grad=True)
        out, _ = layer(x)
        out.sum().backward()
        assert out.shape == (5, 3, 32)
        assert x.grad.shape == x.shape
        assert all(param.grad.shape == param.shape for param in layer.parameters())


def test_weights_lie_in_one_block_where_torch_flattens_them():
    with phantom():
        for dtype, blocks in ((torch.float32, 1), (torch.bfloat16, 4)):
            layer = nn.LSTM(8, 16).to("cuda", dtype)
            assert len({param.untyped_storage()._cdata for param in layer.parameters()}) == blocks


def test_autocast_means_float16_for_cudnn():
    with phantom(), torch.autocast("cuda", dtype=torch.bfloat16):
        layer = nn.GRU(8, 16).cuda()
        out, _ = layer(torch.randn(5, 3, 8, device="cuda"))
        assert out.dtype == torch.float16
        out.float().sum().backward()
        assert {param.grad.dtype for param in layer.parameters()} == {torch.float32}


def test_packed_sequences():
    with phantom():
        layer = nn.LSTM(8, 16).cuda()
        packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 8, device="cuda"), torch.tensor([5, 4, 2]))
        out, (hidden, _) = layer(packed)
        assert out.data.shape == (11, 16)
        assert hidden.shape == (1, 3, 16)


def test_without_cudnn_torch_runs_a_kernel_a_step():
    with phantom(), torch.backends.cudnn.flags(enabled=False):
        layer = nn.GRU(8, 16).cuda()
        out, _ = layer(torch.randn(5, 3, 8, device="cuda"))
        out.sum().backward()
        assert out.shape == (5, 3, 16)


def test_a_step_leaves_nothing_behind():
    def build():
        layer = nn.LSTM(64, 64, 2, dropout=0.1).cuda()
        x = torch.randn(16, 8, 64, device="cuda")

        def step():
            with torch.autocast("cuda"):
                layer(x)[0].float().sum().backward()
            layer.zero_grad()

        return step

    first, second, third = (step.peak_allocated for step in memfit.predict(build, steps=3).steps)
    assert second == third
    assert first <= second


def test_workspaces_are_those_that_were_measured():
    errors = sorted(abs(error) for _, error in recurrent_errors())
    assert len(errors) > 1600
    assert errors[len(errors) // 2] < 0.005
    assert errors[len(errors) * 9 // 10] < 0.05
    assert errors[-1] < 0.3


def test_torch_asks_for_other_kernels_forward_and_backward():
    x = torch.empty(28, 64, 28, device="meta")
    sizes = Sizes.of(x, LSTM, (160, 0, 1, False, 0.0, True, False, [], None))
    assert sizes.workspace_bytes(0, is_forward=True) == 33083904
    assert sizes.workspace_bytes(0, is_forward=False) == 14733824
    packed = Sizes.of(torch.empty(28 * 64, 28, device="meta"), LSTM, (160, 0, 1, False, 0.0, True, False, [64] * 28, None))
    assert packed.workspace_bytes(0, is_forward=True) == 13222400


def test_packed_sequences_as_they_were_measured():
    """What is kept, of all; the workspace, of LSTMs in one direction with fewer than 512 steps."""
    rows = json.loads((ROOT / "benchmarks" / "truth" / "packed_recurrent.json").read_text())
    errors = []
    for kind, hidden, inputs, layers, both_ways, drops, batch, steps, in_all, forward, _ in rows:
        mode, gates, ways = (LSTM, 4, 1 + both_ways) if kind == "LSTM" else (GRU, 3, 1 + both_ways)
        sizes = Sizes(mode, steps, batch, in_all, inputs, hidden, 0, layers, ways, drops, torch.float32, is_packed=True)
        assert sizes.reserve_bytes in forward
        widths = [inputs, *[hidden * ways] * (layers - 1)]
        matrices = sum(4 * ways * gates * hidden * (width + hidden) for width in widths)
        taken = max(-size for size in forward if size < 0)
        error = sizes.workspace_bytes(matrices, is_forward=True) / taken - 1
        assert error > -0.01, "never too little"
        if mode == LSTM and not both_ways and steps < 512:
            errors.append(abs(error))
    assert len(errors) > 20
    assert sorted(errors)[len(errors) // 2] < 0.0005
    assert sorted(errors)[len(errors) * 9 // 10] < 0.005


def blocks_of_backward(cell: str) -> list[int]:
    """Requests of at least 24 bytes that the backward pass of a cell makes beyond its results, in an H200's order."""

    def build():
        made = getattr(nn, cell)(256, 256).cuda()
        x = torch.ones(6836, 256, device="cuda", requires_grad=True)
        state = torch.ones(6836, 256, device="cuda")

        def step():
            out = made(x, state if cell == "GRUCell" else (state, state))
            (out if cell == "GRUCell" else out[0]).sum().backward()

        return step

    events = memfit.predict(build, gpu="H200", steps=1).ledger.events
    return [int(size) for size in events.size if size in (42074112, 56098816, 24)]


def test_cells_add_up_the_gradients_of_biases_in_parts():
    """As an H200 did for a GRU: twice 42,074,112 bytes and 24 of counters (benchmarks/workloads/whole/molecules.py)."""
    assert [size for size in blocks_of_backward("GRUCell") if size != 24].count(42074112) >= 2
