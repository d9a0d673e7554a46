"""What ``memfit demo`` runs is what it says, and what a user can type."""

from __future__ import annotations

import pytest

from memfit.cli import build_parser, main
from memfit.cli.commands import demo, predict, show


def test_every_command_can_be_typed():
    assert [build_parser().parse_args(command.split()).command for command in demo.COMMANDS] == ["predict", "show"]


def test_each_is_shown_and_run_until_one_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    ran: list[str] = []
    for command, status in ((predict, 0), (show, 3)):
        monkeypatch.setattr(command, "run", lambda args, status=status: ran.append(args.command) or status)
    assert main(["demo"]) == 3
    assert ran == ["predict", "show"]
    assert capsys.readouterr().out.split("\n")[0] == f"$ memfit {demo.COMMANDS[0]}"
