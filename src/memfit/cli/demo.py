"""``memfit demo``: the main job, on an example that ships with the package."""

from __future__ import annotations

import argparse
from typing import Final

COMMANDS: Final = (
    "predict --model llama3-8b --world-size 8 --gpu H100-80GB --checkpointing full",
    "show run.memfit",
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    subparsers.add_parser(
        "demo",
        help="Llama-3 8B under FSDP on eight H100s, predicted on this machine",
        description=f"Runs and shows: {'; '.join(f'memfit {command}' for command in COMMANDS)}",
    )


def run(args: argparse.Namespace) -> int:
    from memfit.cli import main

    for command in COMMANDS:
        print(f"$ memfit {command}", flush=True)
        status = main(command.split())
        if status:
            return status
        print()
    return 0
