"""Run by tests/parallel/test_training.py under torchrun: trains a tiny model on two gloo ranks in many ways, and leaves the losses.

torchrun --nproc-per-node 2 parallel_training.py FOLDER
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor

from helpers.tiny_models import TINY, TINY_DEEPSEEK, TINY_MOE
from memfit.models.transformer import Transformer
from memfit.models.transformer.splitting import layout_of
from memfit.parallel import Parallelism, parallelize
from memfit.torch_compat.versions import installed_torch

STEPS, MAX_NORM = 3, 0.5
SIX = replace(TINY, name="six", layers=6)

TRAINED = {
    "shard": (TINY, {}),
    "tp": (TINY, {"tp": 2}),
    "tp_latent": (TINY_DEEPSEEK, {"tp": 2}),
    "tp_experts": (TINY_MOE, {"tp": 2}),
    "ep": (TINY_MOE, {"ep": 2}),
    "ep_selective": (TINY_MOE, {"ep": 2, "checkpointing": "selective"}),
    "ep_shared": (TINY_DEEPSEEK, {"ep": 2}),
    "1f1b": (TINY, {"pp": 2, "microbatches": 4}),
    "gpipe_checkpointed": (TINY, {"pp": 2, "microbatches": 2, "schedule": "gpipe", "checkpointing": "full"}),
    "interleaved": (SIX, {"pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b"}),
}
"""The model, and how it is split over the two ranks."""
HAS_V = installed_torch() >= (2, 12)
"""Pipelines of torch 2.11 begin with messages between the stages of a rank, and gloo has none from a rank to itself."""
if HAS_V:
    TRAINED["zbv"] = SIX, {"pp": 2, "microbatches": 4, "schedule": "zbv-zero-bubble"}
    TRAINED["dualpipe"] = SIX, {"pp": 2, "microbatches": 4, "schedule": "dualpipe-v"}

BATCH, LENGTH = 4, 16


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def make(config):
    torch.manual_seed(0)
    return Transformer(config)


def data():
    torch.manual_seed(1)
    tokens = torch.randint(0, 512, (BATCH, LENGTH + 1))
    return tokens[:, :-1], tokens[:, 1:]


def train_plain(config):
    model, (tokens, labels) = make(config), data()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(STEPS):
        loss = loss_of(model(tokens), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_split(config, checkpointing=None, **options):
    model, (tokens, labels) = make(config), data()
    shared = parallelize(model, Parallelism(**options), layout=layout_of(model), loss=loss_of, checkpointing=checkpointing)
    optimizer, losses = torch.optim.AdamW(shared.parameter_groups(), lr=1e-2), []
    for _ in range(STEPS):
        loss = shared.forward_backward(tokens, labels)
        shared.clip_grad_norm_(MAX_NORM)
        optimizer.step()
        shared.after_step()
        optimizer.zero_grad()
        losses.append(None if loss is None else float(loss.full_tensor() if isinstance(loss, DTensor) else loss))
    names = [name for part in shared.parts for name, _ in part.named_parameters()]
    return losses, names


def main() -> None:
    dist.init_process_group("gloo")
    plain = {config.name: train_plain(config) for config, _ in TRAINED.values()}
    split = {name: train_split(config, **options) for name, (config, options) in TRAINED.items()}
    torch.save({"plain": plain, "split": split}, Path(sys.argv[1]) / f"results-{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
