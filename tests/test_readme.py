"""What the README and the docs show, executed; their figures and links; and the names they lead to."""

import json
import math
import re
import statistics

import pytest
import torch
from helpers import ROOT
from torch import nn

import memfit
import memfit.cli

(PINNED,) = re.findall(r"^torch==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
"""The release of torch that development has."""


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(32000, 16), nn.Linear(16, 16)

    def forward(self, tokens):
        return self.head(self.embed(tokens)).mean(-1)


def snippets(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL)


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


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "docs/guard.md",
        "docs/oom.md",
        "docs/phantom.md",
        "docs/predict.md",
        "docs/tracking.md",
        "docs/training_loops.md",
    ],
)
def test_snippets_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = snippets(path)
    assert found
    for snippet in found:
        exec(compile(snippet, path, "exec"), surroundings())


@pytest.mark.skipif(torch.__version__.split("+")[0] != PINNED, reason="it shows what development's torch prints")
def test_the_first_output_is_what_the_command_prints(tmp_path, monkeypatch, capsys):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^memfit (predict --model .*)$", readme, re.MULTILINE)
    shown = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)[0]
    assert shown in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert memfit.cli.main(command.split()) == 0
    assert "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines()) == shown


def off_by(name, predicted, true):
    """The absolute errors of a benchmark's result, in percent and in order; a figure that was not measured is 0."""
    rows = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return sorted(abs(row[predicted] / row[true] - 1) * 100 for row in rows if row[true])


def row_of_figures(errors):
    worst_of_most = errors[math.ceil(0.9 * len(errors)) - 1]
    return f"| {statistics.median(errors):.2f} % | {worst_of_most:.2f} % | {errors[-1]:.2f} % |"


@pytest.mark.parametrize("path", ["README.md", "docs/accuracy.md"])
def test_accuracy_is_that_of_the_benchmarks(path):
    table = (ROOT / path).read_text(encoding="utf-8").partition("<!-- figures: benchmarks/results -->\n")[2].partition("\n\n")[0]
    zoo, more = "`python benchmarks/accuracy/accuracy.py`", "`python benchmarks/accuracy/accuracy.py --zoo more`"
    peak, reserved, fit = ("peak", "true_peak"), ("reserved", "true_reserved"), ("fit", "true_fit")
    assert table.splitlines()[2:] == [
        f"| {zoo} | {len(off_by('accuracy', *peak))} | allocated peak {row_of_figures(off_by('accuracy', *peak))}",
        f"| | | reserved peak {row_of_figures(off_by('accuracy', *reserved))}",
        f"| | {len(off_by('accuracy', *fit))} of these | smallest fit {row_of_figures(off_by('accuracy', *fit))}",
        f"| {more} | {len(off_by('accuracy_more', *peak))} | allocated peak {row_of_figures(off_by('accuracy_more', *peak))}",
        f"| | | reserved peak {row_of_figures(off_by('accuracy_more', *reserved))}",
    ]


@pytest.mark.parametrize("path", sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("*.md")))
def test_links_lead_somewhere(path):
    """On GitHub, where the README is read; the pages in docs/ are checked when the site is built."""
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / path).read_text(encoding="utf-8")):
        assert (ROOT / path).parent.joinpath(target).exists(), f"{path} links to {target}"


def test_public_names_exist():
    assert sorted(memfit.__all__) == memfit.__dir__()
    for name in memfit.__all__:
        assert getattr(memfit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = memfit.nonsense
