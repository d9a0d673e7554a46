"""Data that came from the host are known on the phantom GPU."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.phantom.values import host_data
from memfit.torch_compat.fake_tensors import FakeTensor

ROWS, LENGTH = 8, 512


def padded_mask() -> torch.Tensor:
    mask = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    mask[0, :100] = 0
    return mask


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_mask_says_what_its_data_say(is_padded: bool):
    with phantom() as world:
        host = padded_mask() if is_padded else torch.ones(ROWS, LENGTH, dtype=torch.int64)
        mask = host.to("cuda")
        assert bool(mask.all()) is not is_padded
        assert bool((mask == 0).any()) is is_padded
        assert bool(mask.bool().sum() == mask.numel()) is not is_padded
        assert mask[:, :100].sum(-1).tolist() == host[:, :100].sum(-1).tolist()
        assert len(mask.flatten().nonzero()) == int(host.sum())
        assert torch.randn(ROWS, LENGTH, 4, device="cuda")[mask.bool()].shape == (int(host.sum()), 4)
        assert mask.cpu().equal(host)
    assert world.assumptions.sentences() == ()


def test_lengths_of_packed_sequences():
    with phantom() as world:
        lengths = torch.tensor([5, 7, 4], device="cuda")
        cu_seqlens = nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
        assert cu_seqlens.tolist() == [0, 5, 12, 16]
        assert int(cu_seqlens.diff().max()) == 7
        positions = torch.arange(16, device="cuda")
        assert len(torch.repeat_interleave(torch.arange(3, device="cuda"), lengths)) == 16
        assert int((positions[None] < lengths[:, None]).sum()) == 16
        assert torch.bincount(torch.tensor([1, 5, 5], device="cuda")).tolist() == [0, 1, 0, 0, 0, 2]
    assert world.assumptions.sentences() == ()


def test_image_tokens_are_counted_also_in_an_expanded_mask():
    with phantom() as world:
        tokens = torch.randint(0, 100, (2, 300))
        tokens[:, 10:74] = 999
        embedded = torch.randn(2, 300, 8192, device="cuda")
        mask = (tokens.to("cuda") == 999).unsqueeze(-1).expand_as(embedded)
        assert mask.numel() > host_data.LARGEST_KNOWN
        assert embedded[mask].numel() == 2 * 64 * 8192
        embedded.masked_scatter(mask, torch.randn(2 * 64, 8192, device="cuda"))
    assert world.assumptions.sentences() == ()


def test_edges_of_a_large_graph_are_counted_on_the_gpu():
    with phantom() as world:
        host = torch.randint(0, 60_000, (2, 800_000))
        edges = host.to("cuda")
        upper = edges[:, edges[0] <= edges[1]]
        assert upper.shape[1] == int((host[0] <= host[1]).sum())
    assert world.assumptions.sentences() == ()


def test_what_is_changed_by_something_unknown_is_known_no_longer():
    with phantom() as world:
        known = torch.arange(8).to("cuda")
        known[2:4] = torch.randint(0, 9, (2,), device="cuda")
        assert known[7].item() == 1
        other = torch.arange(8).to("cuda")
        other[2:4] = 50
        assert other.tolist() == [0, 1, 50, 50, 4, 5, 6, 7]
        buffer = torch.empty(8, dtype=torch.int64, device="cuda")
        part = buffer[:2]
        buffer.copy_(torch.arange(8))
        assert buffer[7].item() == 7
        part.copy_(torch.randint(0, 9, (2,), device="cuda"))
        assert buffer[7].item() == 1
    assert len(world.assumptions.sentences()) == 2


def test_of_an_unknown_mask_it_is_assumed_and_said_that_nothing_is_padded():
    with phantom() as world:
        mask = torch.randn(4, 100, device="cuda") > 0
        assert mask.all()
        assert bool(mask.sum() == mask.numel())
        assert not (~mask).any()
    said = world.assumptions.sentences()
    assert len(said) == 3
    assert all("without padding" in sentence for sentence in said)


def test_real_numbers_and_large_tensors_are_data():
    with phantom():
        assert host_data.host_data_of(torch.ones(host_data.LARGEST_REAL + 1).to("cuda")) is None
        assert host_data.host_data_of(torch.ones(host_data.LARGEST_KNOWN + 1, dtype=torch.bool).to("cuda")) is None


def test_host_copies_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch):
    with phantom():
        gc.collect()
        before = host_data._copies.size_bytes
        first = torch.zeros(10_000, dtype=torch.int64).to("cuda")
        view = first.view(100, 100)
        assert host_data._copies.size_bytes == before + 80_000
        monkeypatch.setattr(host_data, "MOST_BYTES", before + 100_000)
        second = torch.zeros(10_000, dtype=torch.int64).to("cuda")
        assert host_data.host_data_of(view) is not None
        assert host_data.host_data_of(second) is None
        del first, view
        assert host_data._copies.size_bytes == before


def test_a_padded_llama_builds_masks_and_an_unpadded_one_does_not():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, vocab_size=300
    )

    def predict(is_padded: bool) -> memfit.Prediction:
        def build():
            model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
            tokens = torch.randint(0, 256, (ROWS, LENGTH))
            mask = padded_mask() if is_padded else torch.ones(ROWS, LENGTH, dtype=torch.int64)

            def step():
                given = tokens.to("cuda")
                model(input_ids=given, labels=given, attention_mask=mask.to("cuda")).loss.backward()

            return step

        return memfit.predict(build, steps=1)

    masks = ROWS * LENGTH * LENGTH  # one byte for each pair of a token and a token
    padded, unpadded = (predict(is_padded).ledger for is_padded in (True, False))
    assert masks in padded.events.size.tolist()
    assert masks not in unpadded.events.size.tolist()
    assert not any("read from the GPU" in said for said in (*padded.info.assumptions, *unpadded.info.assumptions))


def test_zeros_that_another_rank_replaces_are_not_known():
    with phantom(world_size=4, rank=1):
        dist.init_process_group("nccl")
        placeholder, same = torch.tensor([0, 0], device="cuda"), torch.tensor([3, 0], device="cuda")
        for tensor in (placeholder, same):
            dist.broadcast(tensor, 0)
        assert (placeholder.tolist(), same.tolist()) == ([1, 1], [3, 0])
        own = torch.tensor([0], device="cuda")
        dist.broadcast(own, 1)
        assert own.item() == 0


def test_whole_numbers_of_the_host_are_real_also_where_they_are_many():
    """Edges of a graph, of which a sampler makes batches. Real numbers are models and data of their own, and stay without data."""
    expected = torch.randint(1000, (2, 400_000), generator=torch.Generator().manual_seed(3))
    with phantom():
        edges = torch.randint(1000, (2, 400_000), generator=torch.Generator().manual_seed(3))
        assert edges.unique().tolist() == expected.unique().tolist()
        assert torch.full((2, 400_000), 7).unique().tolist() == [7]
        assert isinstance(torch.zeros(400_000), FakeTensor)
