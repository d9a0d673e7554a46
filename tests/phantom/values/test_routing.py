"""Routing is taken to be even, and saving to take nothing."""

import io

import torch
import torch.nn.functional as F
from torch import nn

import memfit

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
