"""Models of a few layers by name, for searches that are predicted for real."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from memfit.job import Configuration, PredictOptions, Subject
from memfit.models.config import MODELS


@contextmanager
def few_layers(model: str, layers: int) -> Iterator[str]:
    """A known model, cut: its layers are as large as ever, which is what bounds are about."""
    name = f"{model}-cut"
    MODELS[name] = replace(MODELS[model], name=name, layers=layers, source="cut for a test")
    try:
        yield name
    finally:
        del MODELS[name]


def asked_of(model: str, *, gpu: str = "H100-80GB", world_size: int = 8, steps: int = 3, **words: object) -> Configuration:
    options = PredictOptions(gpu=gpu, world_size=world_size, steps=steps)
    return Configuration.of(Subject(model=model), {"seq": 1024} | words, options)


TRAIN = """
import torch

def build(*, width=64):
    model = torch.nn.Linear(width, width).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.ones(8, width, device="cuda")

    def step():
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
"""
"""A function in a file, which takes little of everything."""
