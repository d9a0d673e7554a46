"""The command line: ``memfit COMMAND ...``.

::

    main() ──> a command's module ──> add_parser: its flags, its help
                                  └─> run: one call, one output

One small file per command. Mistakes in what the user gave are told in one line; nobody should read a traceback to learn that a file
does not exist.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from memfit import __version__
from memfit.cli import compare, demo, diff, doctor, explain, export, fit, plan, predict, report, run, show, top, watch
from memfit.errors import MemfitError, StepFailedError
from memfit.views.escaping import printable

COMMANDS = {
    "demo": demo,
    "show": show,
    "report": report,
    "fit": fit,
    "explain": explain,
    "diff": diff,
    "export": export,
    "predict": predict,
    "compare": compare,
    "plan": plan,
    "run": run,
    "watch": watch,
    "top": top,
    "doctor": doctor,
}

_PIPE_CLOSED, _MISUSED, _INTERRUPTED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    args = build_parser().parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = COMMANDS[args.command].run(args)
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


def build_parser() -> argparse.ArgumentParser:
    """The whole surface of the command line."""
    parser = argparse.ArgumentParser(
        prog="memfit", description="Will this training run fit on that GPU, and where does every byte go?"
    )
    parser.add_argument("--version", action="version", version=f"memfit {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS.values():
        command.add_parser(subparsers)
    return parser
