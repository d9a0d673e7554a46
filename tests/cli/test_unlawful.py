"""Ledgers that can be read but say what cannot be, or nothing at all: every command says so in a line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from memfit.cli import main
from memfit.ledger import Ledger, LedgerBuilder
from memfit.ledger.journal import Journal
from memfit.testing import ledger
from memfit.views.exports import EXPORTS

RUN = ledger("alloc 4MiB parameter a.b.w on cuda:0; step; enter forward a; alloc 1MiB x on cuda:0; exit; free x")


def unlawful() -> dict[str, Ledger]:
    parents = np.roll(np.arange(len(RUN.modules), dtype=np.int32), 1)
    return {
        "modules in a circle": replace(RUN, modules=replace(RUN.modules, parent=parents)),
        "a module that is its own parent": replace(RUN, modules=replace(RUN.modules, parent=np.zeros_like(parents))),
        "a negative size": replace(RUN, events=replace(RUN.events, size=-RUN.events.size)),
        "blocks that were never allocated": replace(RUN, events=replace(RUN.events, subject=np.zeros_like(RUN.events.subject))),
    }


@pytest.mark.parametrize("kind", EXPORTS)
@pytest.mark.parametrize("name", unlawful())
def test_an_export_of_what_cannot_be(name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    unlawful()[name].save(tmp_path / "run.memfit")
    assert main(["export", str(tmp_path / "run.memfit"), "--to", kind, "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "the ledger breaks its own laws: " in said or "has modules in a circle" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gpu", [[], ["--gpu", "H200"]])
@pytest.mark.parametrize("killed", [True, False])
def test_explaining_a_run_in_which_nothing_was_allocated(
    killed: bool, gpu: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "run.memfit"
    if killed:
        Journal(path).close()
    else:
        LedgerBuilder().build().save(path)
    assert main(["explain", str(path), *gpu]) == 2
    said = capsys.readouterr().err
    assert ("nothing was allocated" if gpu else "did not run out of memory") in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("command", [["fit", "--gpu", "H200"], ["show"]])
def test_a_run_killed_in_its_first_second_can_be_looked_at(command: list[str], tmp_path: Path):
    Journal(tmp_path / "run.memfit").close()
    assert main([*command, str(tmp_path / "run.memfit")]) == 0
