"""The command line: ``memfit COMMAND ...``.

::

    main() ──> commands/ ──> add_parser: its flags, its help (flags.py: those that several share; parser.py: examples, suggestions)
                         └─> run: one call, one output (outputs.py), and signs of life while it lasts (progress.py)
    completion.py    the same surface, as a script for a shell

One small file per command, and only the one that was asked for is imported. A mistake in what the user gave
is told in one line, without a traceback.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Final

from memfit import __version__
from memfit.cli.parser import CommandParser, TopParser, suggest
from memfit.errors import MemfitError, StepFailedError, TerminatedError
from memfit.views.escaping import printable

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Will it fit, and how": ("predict", "run", "max-batch", "max-seq", "compare", "plan", "fit"),
    "Where memory goes": ("show", "report", "explain", "diff", "export"),
    "While it trains": ("train", "watch", "top"),
    "On this machine": ("serve", "calibrate", "demo", "doctor", "completion"),
}
"""In the order of the help."""

FOLDERS: Final = {"machine": ("calibrate", "completion", "doctor", "serve"), "largest": ("max-batch", "max-seq")}
"""The commands that are in a folder of their own."""

COMMANDS: Final = tuple(command for commands in GROUPS.values() for command in commands)
"""Each is a module of ``commands/``."""

_PIPE_CLOSED, _MISUSED, _INTERRUPTED, _TERMINATED = 1, 2, 130, 143
_EXAMPLES: Final = (
    ("memfit predict --model llama3-8b --gpu H100 --world-size 8", "does Llama-3 8B train on eight H100s?"),
    ("memfit run --gpu RTX-4090 train.py --batch 16", "does my script fit, as it is?"),
    ("memfit explain run.memfit --gpu RTX-4090", "why does it run out of memory, and what would help?"),
)
_EXIT_CODES: Final = (
    'Exit status: 0 if there is an answer ("it does not fit" is one), 1 if something that was asked for does not hold, '
    "2 for a mistake in what was given, 130 after Ctrl-C, 143 after SIGTERM."
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; gives the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    args = _read(words)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    interruptions = _Interruptions()
    try:
        with interruptions.noticed(wanted=args.command != "watch"):
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
    except KeyboardInterrupt as error:
        print("memfit: stopped", file=sys.stderr)
        return _TERMINATED if isinstance(error, TerminatedError) else _INTERRUPTED
    except BrokenPipeError:
        # The reader has gone: Python must not try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        print(f"memfit: error: {printable(what)}{error.strerror or error}", file=sys.stderr)
        return _MISUSED
    return status if interruptions.status is None else interruptions.status


class _Interruptions:
    """Ctrl-C and SIGTERM while a command runs. A scheduler that ends a job gets what a user gets who presses Ctrl-C: what is known
    so far, and an exit status that says that it is no more."""

    def __init__(self) -> None:
        self.status: int | None = None

    @contextmanager
    def noticed(self, *, wanted: bool) -> Iterator[None]:
        """Not ``wanted`` where a command is only the guest of another program."""
        if not wanted or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.status = _TERMINATED if number == signal.SIGTERM else _INTERRUPTED
        raise TerminatedError if number == signal.SIGTERM else KeyboardInterrupt


def _read(words: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command. Leaves with status 2 and advice where a word is none that is known."""
    if not words:
        build_parser().print_help(sys.stderr)
        sys.exit(_MISUSED)
    first = words[0]
    if first not in COMMANDS and not first.startswith("-"):
        advice = f"; a script is predicted by memfit run {printable(first)}" if first.endswith(".py") else suggest(first, COMMANDS)
        CommandParser(prog="memfit", usage="memfit COMMAND ...").error(f"there is no command {printable(first)!r}{advice}")
    split = getattr(load(first), "split_program", None) if first in COMMANDS else None
    words, program = split(words) if split is not None else (words, [])
    parser = build_parser([first] if first in COMMANDS else COMMANDS)
    args, left = parser.parse_known_args(words)
    args.program = program
    if left:
        named: CommandParser = parser.commands.choices[args.command]
        named.refuse([*map(printable, left)], build_parser().commands.choices)
    return args


def load(command: str) -> ModuleType:
    """The module of a command."""
    folder = next((f"{name}." for name, commands in FOLDERS.items() if command in commands), "")
    return importlib.import_module(f"memfit.cli.commands.{folder}{command.replace('-', '_')}")


def build_parser(commands: Iterable[str] = COMMANDS) -> TopParser:
    """The surface of the command line, or of some commands: the others are not imported."""
    parser = TopParser(
        prog="memfit",
        usage="memfit COMMAND ...",
        description="Will this training run fit on that GPU, and where does every byte go?",
        epilog=_EXIT_CODES,
        groups=GROUPS,
        examples=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"memfit {__version__}")
    for command in commands:
        load(command).add_parser(parser.commands)
    return parser
