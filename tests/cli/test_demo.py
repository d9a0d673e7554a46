"""What ``memfit demo`` runs is what it says, and what a user can type."""

from __future__ import annotations

import pytest

import memfit.cli
from memfit.cli import build_parser, demo, main


def test_every_command_can_be_typed():
    assert [build_parser().parse_args(command.split()).command for command in demo.COMMANDS] == ["predict", "show"]


def test_each_is_shown_and_run_until_one_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    ran: list[list[str]] = []
    monkeypatch.setattr(memfit.cli, "main", lambda argv: ran.append(argv) or len(ran) - 1)
    assert main(["demo"]) == 1
    assert ran == [command.split() for command in demo.COMMANDS]
    assert capsys.readouterr().out.split("\n")[0] == f"$ memfit {demo.COMMANDS[0]}"
