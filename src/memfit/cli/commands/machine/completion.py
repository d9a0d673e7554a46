"""``memfit completion``: commands, flags and their values, completed by the shell."""

from __future__ import annotations

import argparse
import sys

from memfit.cli.completion import SCRIPTS, typed_commands


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="a script with which your shell completes commands, flags and values",
        description="Prints a script for your shell. A new shell knows it from then on.",
        examples=(
            ("memfit completion bash", "write it to ~/.local/share/bash-completion/completions/memfit"),
            ("memfit completion zsh", "write it to a file _memfit in a folder of $fpath"),
            ("memfit completion fish", "write it to ~/.config/fish/completions/memfit.fish"),
        ),
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help=f"one of {', '.join(SCRIPTS)}")


def run(args: argparse.Namespace) -> int:
    from memfit.cli import build_parser

    sys.stdout.write(SCRIPTS[args.shell](typed_commands(build_parser())))
    return 0
