"""Models of a few layers by name, for searches that are predicted for real."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from memfit.compare.cell import Inputs
from memfit.compare.grid import Subject, recipe_inputs
from memfit.models.catalog import MODELS


@contextmanager
def few_layers(model: str, layers: int) -> Iterator[str]:
    """A known model, cut: its layers are as large as ever, which is what bounds are about."""
    name = f"{model}-cut"
    MODELS[name] = replace(MODELS[model], name=name, layers=layers, source="cut for a test")
    try:
        yield name
    finally:
        del MODELS[name]


def inputs_of(model: str, **chosen: object) -> Inputs:
    return recipe_inputs(Subject(model=model), {"gpu": "H100-80GB", "world_size": 8, "seq": 1024} | chosen)


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
