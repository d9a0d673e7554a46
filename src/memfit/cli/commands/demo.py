"""``memfit demo``: the main job, on an example that ships with the package."""

from __future__ import annotations

import argparse
from typing import Final

from memfit.cli.commands import predict, show
from memfit.cli.parser import CommandParser

COMMANDS: Final = (
    "predict --model llama3-8b --world-size 8 --gpu H100-80GB --checkpointing full",
    "show run.memfit",
)
_MODULES: Final = {"predict": predict, "show": show}
"""Those that the demo runs."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    subparsers.add_parser(
        "demo",
        help="predict Llama-3 8B under FSDP on eight H100s, on this machine",
        description=f"Runs and shows: {'; '.join(f'memfit {command}' for command in COMMANDS)}",
        examples=(("memfit demo", "needs no GPU and half a minute"),),
    )


def run(args: argparse.Namespace) -> int:
    parser = argparse.ArgumentParser(prog="memfit")
    subparsers = parser.add_subparsers(dest="command", required=True, parser_class=CommandParser)
    for module in _MODULES.values():
        module.add_parser(subparsers)
    for command in COMMANDS:
        print(f"$ memfit {command}", flush=True)
        given = parser.parse_args(command.split())
        status: int = _MODULES[given.command].run(given)
        if status:
            return status
        print()
    return 0
