"""The command line: ``memfit COMMAND ...``.

::

    main() ──> commands/ ──> add_parser: its flags, its help (flags.py: those that several share)
                         └─> run: one call, one output (outputs.py)

One small file per command, and only the one that was asked for is imported. A mistake in what the user gave
is told in one line, without a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

from memfit import __version__
from memfit.errors import MemfitError, StepFailedError
from memfit.views.escaping import printable

COMMANDS = (
    "demo",
    "show",
    "report",
    "fit",
    "explain",
    "diff",
    "export",
    "predict",
    "compare",
    "plan",
    "run",
    "watch",
    "top",
    "calibrate",
    "doctor",
)
"""In the order of the help; each is a module of ``commands/``, or of the folder in it for those about this machine."""
OF_THIS_MACHINE = ("calibrate", "doctor")

_PIPE_CLOSED, _MISUSED, _INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    asked = words[:1] if words[:1] and words[0] in COMMANDS else COMMANDS
    args = build_parser(asked).parse_args(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = load(args.command).run(args)
        sys.stdout.flush()
    except MemfitError as error:
        # A traceback is read line by line; anything else is one line, whatever a file may be called.
        lines = str(error).splitlines() if isinstance(error, StepFailedError) else [str(error)]
        print("memfit: error: " + "\n".join(map(printable, lines)), file=sys.stderr)
        return _MISUSED
    except MemoryError:
        print("memfit: error: this took more memory than there is: end other programs, or use a machine with more", file=sys.stderr)
        return _MISUSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone: Python must not try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        print(f"memfit: error: {printable(what)}{error.strerror or error}", file=sys.stderr)
        return _MISUSED
    return status


def load(command: str) -> ModuleType:
    """The module of a command."""
    folder = "machine." if command in OF_THIS_MACHINE else ""
    return importlib.import_module(f"memfit.cli.commands.{folder}{command}")


def build_parser(commands: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The surface of the command line, or of some commands: the others are not imported."""
    parser = argparse.ArgumentParser(
        prog="memfit", description="Will this training run fit on that GPU, and where does every byte go?"
    )
    parser.add_argument("--version", action="version", version=f"memfit {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in commands:
        load(command).add_parser(subparsers)
    return parser
