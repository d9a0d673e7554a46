"""A small model in the phantom world, sharded with the given words."""

import torch
import torch.distributed as dist
from torch import nn

import memfit
from memfit.analysis import find_peak
from memfit.fsdp import load_state_dict, shard, state_dict

DIM, BLOCKS, TOKENS = 1024, 4, 2048
BLOCK = 2 * DIM * 4 * DIM
PARAMETERS = BLOCKS * BLOCK + 2 * DIM * DIM
F32, BF16 = 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM, bias=False), nn.Linear(4 * DIM, DIM, bias=False)
        self.register_buffer("scale", torch.ones(DIM))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x * self.scale)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(DIM, DIM, bias=False)
        self.layers = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(DIM, DIM, bias=False)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def predict(words, settings=None, loads=False, seen=None, sgd=False):
    """Two steps; with settings, a third that makes a state dict, and may load it. ``seen`` takes levels and the state dict."""
    seen = {} if seen is None else seen

    def build():
        dist.init_process_group("nccl")
        with torch.device("cuda"):
            model = Model()
        model = shard(model, **words)
        kind, options = (torch.optim.SGD, {"foreach": False}) if sgd else (torch.optim.AdamW, {})
        optimizer = kind(model.parameters(), lr=1e-3, **options)
        x = torch.randn(TOKENS, DIM, device="cuda")
        steps = iter((train, train, save))

        def step():
            next(steps)(model, optimizer, x)

        return step

    def train(model, optimizer, x):
        model(x).float().pow(2).mean().backward()
        seen["after_backward"] = torch.cuda.memory_allocated()
        optimizer.step()
        optimizer.zero_grad()
        seen["after_step"] = torch.cuda.memory_allocated()

    def save(model, optimizer, x):
        state = state_dict(model, optimizer, settings)
        seen["held"] = torch.cuda.memory_allocated()
        seen["state"] = {name: (tuple(value.shape), where(value)) for name, value in state["model"].items()}
        if loads:
            load_state_dict(model, state, optimizer, settings)

    return memfit.predict(build, gpu="H200", world_size=8, steps=2 + (settings is not None))


def where(tensor):
    return "sharded" if type(tensor).__name__ == "ShardedTensor" else tensor.device.type


def gpu_bytes(prediction, category):
    """All that was ever allocated of a category on the GPU."""
    ledger = prediction.ledger
    gpu = [device.name.startswith("cuda") for device in ledger.devices].index(True)
    chosen = (ledger.categories == category) & (ledger.blocks.device == gpu)
    return int(ledger.block_peak_bytes[chosen].sum())


def peak_phase(prediction):
    ledger = prediction.ledger
    return find_peak(ledger, [device.name.startswith("cuda") for device in ledger.devices].index(True)).phase
