"""What the README and the docs show, executed; and the names they lead to."""

import re

import pytest
import torch
from helpers import ROOT
from torch import nn

import memfit


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32000, 16), nn.Linear(16, 16)

    def forward(self, tokens):
        return self.head(self.embed(tokens))


def snippets(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def surroundings():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randint(0, 32000, (2, 8))

    def train_step():
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def build():
        return lambda: torch.ones(4, device="cuda", requires_grad=True).sum().backward()

    return {
        "torch": torch,
        "memfit": memfit,
        "Model": Model,
        "model": model,
        "optimizer": optimizer,
        "batch": batch,
        "train_step": train_step,
        "build": build,
    }


@pytest.mark.parametrize("path", ["README.md", "docs/phantom.md", "docs/oom.md", "docs/training_loops.md"])
def test_snippets_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = snippets(path)
    assert found
    for snippet in found:
        exec(compile(snippet, path, "exec"), surroundings())


def test_links_lead_somewhere():
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_public_names_exist():
    assert sorted(memfit.__all__) == memfit.__dir__()
    for name in memfit.__all__:
        assert getattr(memfit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = memfit.nonsense
