"""Models by name in four dimensions, as ``memfit predict --model ... --mesh ...`` builds them: rows of ``ranks_blind.py``."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from benchmarks.workloads.frontier_zoo import world
from benchmarks.workloads.zoo import Run
from memfit.job import Recipe
from memfit.job.configuration import build_recipe
from memfit.models.transformer.experts import Experts


def recipe(model: str, mesh: str, rank: int, *, size: int, **words) -> Callable[[str], Run]:
    """One rank of a recipe; ``mesh`` is what the command line says."""
    made = Recipe(model=model, mesh=mesh, **words)

    @world(size, rank)
    def build(device):
        if dist.get_backend() == "fake":
            send_evenly(made.ep)
        step = build_recipe(made)
        return Run(None, None, lambda mark: step())

    return build


def send_evenly(ep: int) -> None:
    """What the fake group cannot give: how many tokens others send here. Every expert is chosen equally often.

    Nothing is allocated: what was chosen is written over where it is, unseen by autograd, which keeps it for backward.
    """
    choose = Experts._choose

    def choose_evenly(experts: Experts, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights, chosen = choose(experts, scores)
        flat = chosen.data.view(-1)
        torch.arange(flat.numel(), out=flat)
        flat.remainder_(experts.config.num_experts)
        return weights, chosen

    def exchange_counts(received: torch.Tensor, sent: torch.Tensor, group: dist.ProcessGroup) -> None:
        received.copy_(sent)

    if ep > 1:
        Experts._choose = choose_evenly
        dist.all_to_all_single = exchange_counts


MIXED = {"batch": 4, "seq": 4096, "checkpointing": "full"}
LARGE = {"microbatches": 8, "seq": 2048, "checkpointing": "full"}

RECIPES = {
    "named_8b_pp2_tp2_0": recipe("llama3-8b", "dp=2,tp=2,pp=2", 0, size=8, seq=4096, microbatches=4, checkpointing="selective"),
    "named_8b_pp2_tp2_7": recipe("llama3-8b", "dp=2,tp=2,pp=2", 7, size=8, seq=4096, microbatches=4, checkpointing="selective"),
    "named_8b_cp2_tp2": recipe("llama3-8b", "dp=2,tp=2,cp=2", 3, size=8, seq=8192, batch=2),
    "named_8b_hybrid_tp2": recipe("llama3-8b", "replicate=2,dp=2,tp=2", 7, size=8, strategy="hybrid_shard", **MIXED),
    "named_8b_dualpipe_v": recipe("llama3-8b", "dp=4,pp=2", 4, size=8, schedule="dualpipe-v", microbatches=8, seq=2048),
    "named_8b_zbv_tp4": recipe(
        *("llama3-8b", "tp=4,pp=2", 7), size=8, schedule="zbv-zero-bubble", microbatches=8, seq=2048, precision="bf16"
    ),
    "named_8b_compiled_pp4": recipe("llama3-8b", "dp=2,pp=4", 0, size=8, schedule="interleaved-1f1b", seq=2048, compile="blocks"),
    "named_qwen3_30b_ep8": recipe("qwen3-30b-a3b", "dp=8,ep=8", 5, size=8, **MIXED),
    "named_deepseek_lite_ep8_tp2_pp2": recipe("deepseek-v2-lite", "dp=4,tp=2,pp=2,ep=8", 8, size=16, **MIXED),
    "named_70b_tp8": recipe("llama3-70b", "dp=8,tp=8", 63, size=64, **MIXED),
    "named_405b_first": recipe("llama3-405b", "dp=8,tp=8,pp=8", 0, size=512, **LARGE),
    "named_405b_last": recipe("llama3-405b", "dp=8,tp=8,pp=8", 511, size=512, **LARGE),
}
