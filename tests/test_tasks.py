"""The twenty tasks of docs/tasks.md: every command can be typed as it stands there."""

from __future__ import annotations

import re
import shlex

from helpers import ROOT

from memfit.cli import COMMANDS, build_parser

ROWS = re.findall(
    r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8"), re.MULTILINE
)


def test_there_are_twenty_each_in_at_most_two_commands():
    assert [int(number) for number, *_ in ROWS] == [*range(1, 21)]
    assert all(1 <= len(re.findall(r"`memfit [^`]+`", terminal)) <= 2 for _, _, terminal, _ in ROWS)


def test_every_command_is_read():
    parser = build_parser()
    for _, _, terminal, _ in ROWS:
        for command in re.findall(r"`memfit ([^`]+)`", terminal):
            args, left = parser.parse_known_args(shlex.split(command))
            assert args.command in COMMANDS
            assert not left
