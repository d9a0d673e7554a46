"""Routing is taken to be even, and saving to take nothing."""

import io

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.errors import ConfigError
from memfit.phantom.values.assumptions import Expected

TOKENS, EXPERTS, DIM = 64, 8, 16


def predicted(step_of):
    seen = []

    def build():
        weight = nn.Linear(DIM, EXPERTS).cuda()
        tokens = torch.randn(TOKENS, DIM, device="cuda")

        def step():
            seen.append(step_of(weight, tokens))

        return step

    prediction = memfit.predict(build, gpu="H200", steps=1)
    return seen[0], prediction.assumptions


def test_each_expert_gets_its_share_of_the_chosen():
    def step(router, tokens):
        _, chosen = router(tokens).topk(2)
        token, slot = torch.where(chosen == 3)
        return token.numel(), slot.numel()

    counts, assumptions = predicted(step)
    assert counts == (TOKENS * 2 // EXPERTS,) * 2
    assert any("16 of 128 elements, an even share" in sentence for sentence in assumptions)


@pytest.mark.parametrize(("imbalance", "counts"), [(1.0, [16] * 8), (4.0, [64] + [9] * 7)])
def test_a_mask_for_each_expert_is_taken_apart(imbalance: float, counts: list[int]):
    seen = []

    def build():
        router = nn.Linear(DIM, EXPERTS).cuda()

        def step():
            _, chosen = router(torch.randn(TOKENS, DIM, device="cuda")).topk(2)
            masks = (chosen.unsqueeze(-1) == torch.arange(EXPERTS, device="cuda")).permute(2, 0, 1)
            seen.append([torch.where(mask)[0].numel() for mask in masks])

        return step

    memfit.predict(build, gpu="H200", steps=1, expected={"imbalance": imbalance})
    assert seen == [counts]


@pytest.mark.parametrize("num", [640, 2**21])
def test_experts_that_take_turns(num: int):
    """Few numbers are known, and counted; of many it is known that they start again."""

    def step(router, tokens):
        turns = torch.arange(num, device="cuda", dtype=torch.int64).reshape(-1, 2) % EXPERTS
        return torch.histc(turns.view(-1), bins=EXPERTS, min=0, max=EXPERTS).tolist()

    assert predicted(step)[0] == [num // EXPERTS] * EXPERTS


def test_bins_of_whole_numbers_are_experts_also_where_a_compiled_kernel_made_them():
    def step(router, tokens):
        made = torch.empty(100, device="cuda")
        return torch.histc(made, bins=EXPERTS, min=0, max=EXPERTS).tolist(), torch.histc(made, bins=2, min=0, max=9).tolist()

    whole, others = predicted(step)[0]
    assert sum(whole) == 100
    assert max(whole) - min(whole) <= 1
    assert sum(others) != 100


def test_ones_that_were_scattered_and_summed_count_experts():
    def step(router, tokens):
        _, chosen = router(tokens).topk(2)
        gates = torch.zeros(TOKENS, EXPERTS, device="cuda").scatter(1, chosen, 1)
        return gates.long().sum(0).tolist()

    assert predicted(step)[0] == [TOKENS * 2 // EXPERTS] * EXPERTS


def test_one_hot_masks():
    def step(router, tokens):
        _, chosen = router(tokens).topk(2)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        return torch.where(mask[5])[0].numel(), tokens[(chosen == 1).any(-1)].shape[0]

    (routed, selected), _ = predicted(step)
    assert routed == TOKENS * 2 // EXPERTS
    assert 0 < selected <= TOKENS


def test_a_mask_that_says_nothing_selects_everything():
    count, assumptions = predicted(lambda router, tokens: tokens[tokens > 0].numel())
    assert count == TOKENS * DIM
    assert any("all 1,024 elements" in sentence for sentence in assumptions)


def test_saving_writes_nothing():
    def step(router, tokens):
        file = io.BytesIO()
        torch.save(router.state_dict(), file)
        return file.getvalue()

    written, assumptions = predicted(step)
    assert written.startswith(b"memfit predicted this checkpoint")
    assert any("torch.save" in sentence for sentence in assumptions)


NUM_EXPERTS, RANKS, SENT_TOKENS, TOP = 16, 4, 1000, 2


def expert_parallel(exchange: str, count: str, seen: list[int]):
    """As libraries do it: count, tell the others, send by what was counted."""

    def build():
        import torch.distributed as dist
        from torch.distributed import _functional_collectives as collectives

        dist.init_process_group("nccl")
        router = torch.nn.Linear(64, NUM_EXPERTS, bias=False, device="cuda")

        def step():
            tokens = torch.zeros(SENT_TOKENS, 64, device="cuda", requires_grad=True)
            chosen = router(tokens).softmax(-1).topk(TOP, -1).indices
            if count == "histc":
                counts = torch.histc(chosen.view(-1), bins=NUM_EXPERTS, min=0, max=NUM_EXPERTS).long()
            else:
                counts = torch.bincount(chosen.flatten(), minlength=NUM_EXPERTS)
            order = chosen.view(-1).argsort()
            sent = tokens[order // TOP]
            if exchange == "functional":
                theirs = collectives.all_to_all_single(counts, None, None, dist.group.WORLD)
            else:
                theirs = torch.empty_like(counts)
                dist.all_to_all_single(theirs, counts)
            sending, receiving = (each.view(RANKS, -1).sum(1).to("cpu").tolist() for each in (counts, theirs))
            assert sum(sending) == SENT_TOKENS * TOP
            received = collectives.all_to_all_single_autograd(sent, receiving, sending, dist.group.WORLD)
            seen.append(received.shape[0])
            received.sum().backward()

        return step

    return build


@pytest.mark.parametrize("count", ["histc", "bincount"])
@pytest.mark.parametrize("exchange", ["functional", "in place"])
def test_tokens_that_experts_on_other_ranks_exchange(exchange: str, count: str):
    seen: list[int] = []
    found = memfit.predict(expert_parallel(exchange, count, seen), world_size=RANKS, steps=1)
    assert seen == [SENT_TOKENS * TOP]
    assert any("2,000 tokens, an even share" in sentence for sentence in found.assumptions)


def test_indices_that_ranks_exchange_are_not_counts_of_tokens():
    def build():
        import torch.distributed as dist

        dist.init_process_group("nccl")

        def step():
            indices = torch.arange(1000, 1000 + 2 * RANKS).to("cuda")
            dist.all_to_all_single(torch.empty_like(indices), indices, [2] * RANKS, [2] * RANKS)
            dist.all_to_all_single(
                torch.empty_like(indices), indices, output_split_sizes=[2] * RANKS, input_split_sizes=[2] * RANKS
            )

        return step

    assert not any("experts" in sentence for sentence in memfit.predict(build, world_size=RANKS, steps=1).assumptions)


def test_experts_that_get_more_than_their_share():
    seen: list[int] = []
    build = expert_parallel("functional", "histc", seen)
    found = memfit.predict(build, world_size=RANKS, steps=1, expected={"experts": 1.5})
    assert seen[0] == pytest.approx(1.5 * SENT_TOKENS * TOP, abs=NUM_EXPERTS)
    assert any("as expected" in sentence for sentence in found.assumptions)


# -- an imbalance --------------------------------------------------------------------------------------------------------------

BUSIEST = TOKENS * 2 * 2 // EXPERTS
"""Of two experts a token, with an imbalance of two."""
OTHERS = (TOKENS * 2 - BUSIEST) / (EXPERTS - 1)


def unbalanced(step_of):
    seen = []

    def build():
        router = nn.Linear(DIM, EXPERTS).cuda()
        tokens = torch.randn(TOKENS, DIM, device="cuda")
        return lambda: seen.append(step_of(tokens, router(tokens).topk(2).indices))

    prediction = memfit.predict(build, gpu="H200", steps=1, expected={"imbalance": 2})
    return seen[0], prediction.assumptions


def test_the_busiest_expert_receives_what_the_user_says_and_the_others_share_the_rest():
    def step(tokens, chosen):
        counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
        return counts, [torch.where(chosen == expert)[0].numel() for expert in range(EXPERTS)]

    (counts, masked), assumptions = unbalanced(step)
    assert sum(counts) == TOKENS * 2
    assert counts[0] == masked[0] == BUSIEST
    assert all(abs(count - OTHERS) <= 1 for count in (*counts[1:], *masked[1:]))
    assert any("the busiest expert having 2 times the mean" in sentence for sentence in assumptions)


def test_masks_with_a_part_for_each_expert_are_unbalanced_too():
    def step(tokens, chosen):
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        return [torch.where(mask[expert])[0].numel() for expert in range(EXPERTS)]

    counts, _ = unbalanced(step)
    assert counts[0] == BUSIEST
    assert all(abs(count - OTHERS) <= 1 for count in counts[1:])


@pytest.mark.parametrize("wrong", [0.5, 0, -1])
def test_an_imbalance_below_one_is_refused(wrong: float):
    with pytest.raises(ConfigError):
        Expected({"imbalance": wrong})


@pytest.mark.filterwarnings("ignore:`torch.distributed.all_gather_into_tensor` is deprecated")
def test_masks_that_ranks_gather_are_set_as_much_as_their_parts():
    with phantom(world_size=4) as world:
        dist.init_process_group("nccl")
        chosen = torch.randn(32, 8, device="cuda").topk(2, dim=1).indices
        mask = torch.zeros(32, 8, dtype=torch.bool, device="cuda").scatter(1, chosen, True)
        gathered = torch.empty(128, 8, dtype=torch.bool, device="cuda")
        dist.all_gather_into_tensor(gathered, mask)
        mine = gathered[:, 2:4].contiguous()
        assert mine.sum(dim=0).long().cpu().tolist() == [32, 32]
        assert torch.randn(128, 2, device="cuda").masked_select(mine).numel() == 64
    assert any("each expert receives was taken to be an even share" in said for said in world.assumptions.sentences())


def test_what_is_picked_from_known_numbers_is_one_of_them():
    def step(router, tokens):
        graph = torch.arange(4).repeat_interleave(16).cuda()  # which graph of the batch each node belongs to
        kept = graph[router(tokens).sum(-1).topk(32).indices]
        return int(kept.max()) + 1, (kept.max() + 1).item(), len(kept.unique()), len(torch.where(kept == 2)[0])

    assert predicted(step)[0] == (4, 4, 4, 8)


def test_regions_are_spread_over_the_levels_of_a_pyramid():
    def step(router, tokens):
        levels = torch.floor(torch.log2(tokens.sum(-1))).clamp(min=2, max=5).to(torch.int64) - 2
        return [len(torch.where(levels == level)[0]) for level in range(4)]

    counts, assumptions = predicted(step)
    assert counts == [TOKENS // 4] * 4
    assert any("16 of 64 elements, an even share" in sentence for sentence in assumptions)


def test_a_sample_has_as_many_as_were_marked_and_what_is_written_over_is_not_known():
    def step(router, tokens):
        some, others = (torch.zeros(TOKENS, dtype=torch.uint8, device="cuda") for _ in range(2))
        some[torch.randperm(TOKENS, device="cuda")[:8]] = 1
        others[torch.randperm(TOKENS, device="cuda")[:24]] = 1
        sampled = torch.where(some | others)[0]
        labels = torch.tensor([3, 5, 7], device="cuda")[router(tokens).argmax(-1)]
        labels[torch.where(tokens.sum(-1) > 0)[0]] = 0
        return len(sampled), len(torch.where(labels == 0)[0])

    assert predicted(step)[0] == (32, TOKENS)


def test_a_mask_without_its_spare_place_has_all_that_were_marked():
    def step(router, tokens):
        mask = torch.zeros(3 * TOKENS + 1, dtype=torch.bool, device="cuda")
        mask[torch.randperm(3 * TOKENS, device="cuda")[:TOKENS]] = True
        return len(torch.where(mask[: 3 * TOKENS])[0]), len(torch.where(mask[:TOKENS])[0])

    assert predicted(step)[0] == (TOKENS, TOKENS // 3)


def test_only_so_many_shares_of_one_can_be_large():
    def step(router, tokens):
        scores = torch.softmax(torch.cat([router(tokens)] * 10, 1), -1)[:, 1:].reshape(-1)
        return scores.numel(), len(torch.where(scores > 0.05)[0]), len(torch.where(scores > 0.001)[0])

    (num_scores, num_large, num_any), assumptions = predicted(step)
    assert (num_scores, num_large, num_any) == (TOKENS * 79, TOKENS * 79 * 20 // 80, TOKENS * 79)
    assert any("as 20 of 80 shares of 1 can be above 0.05" in sentence for sentence in assumptions)


def test_experts_of_fixed_capacity_receive_it_also_where_a_rank_has_all_of_them():
    """As Megatron writes it: a slice that leaves nothing out is an alias."""

    def step(router, tokens):
        _, chosen = torch.topk(router(tokens), k=4, dim=0)
        mask = torch.zeros(TOKENS, EXPERTS, device="cuda").scatter(0, chosen, 1).bool()
        mine = mask[:, 0:EXPERTS].contiguous()
        return mine.sum(dim=0).tolist(), tokens[:, 0].expand(EXPERTS, -1).masked_select(mine.T).numel()

    assert predicted(step)[0] == ([4] * EXPERTS, 4 * EXPERTS)
