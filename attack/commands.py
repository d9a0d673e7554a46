"""memfit's commands, in this process and in others, and what each of them must be like whatever it is given."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

from attack.protocol import Fell

OVER_LEDGERS = (
    ("show", "{file}"),
    ("show", "--json", "{file}"),
    ("report", "{file}", "-o", "{out}"),
    ("fit", "--gpu", "H100-80GB", "{file}"),
    ("fit", "--gpu", "RTX4090", "--json", "{file}"),
    ("explain", "{file}"),
    ("explain", "--gpu", "A100-40GB", "{file}"),
    ("explain", "--gpu", "T4", "--json", "{file}"),
    ("diff", "{file}", "{sound}"),
    ("diff", "--json", "{sound}", "{file}"),
    *(("export", "{file}", "--to", form, "-o", "{out}") for form in ("memory-viz", "perfetto", "speedscope")),
    *(("export", "{file}", "--to", form, "-o", "{out}") for form in ("csv", "csv-events", "json")),
)
OVER_LOGS = tuple(argv for argv in OVER_LEDGERS if argv[0] in ("fit", "explain"))

FINE, JUDGED_AGAINST, REFUSED = 0, 1, 2


@dataclass(frozen=True)
class Said:
    """What a command did."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str

    @property
    def refused(self) -> bool:
        return self.status == REFUSED


def choose(chance: Random, commands: tuple[tuple[str, ...], ...], file: Path, sound: Path) -> tuple[str, ...]:
    """One of the commands, about a file."""
    places = {"file": str(file), "sound": str(sound), "out": str(file.with_name("out"))}
    return tuple(word.format(**places) for word in chance.choice(commands))


def run_here(argv: tuple[str, ...]) -> Said:
    """In this process: a hundred times as fast as starting one. What escapes from the command is the case's failure."""
    from memfit.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(argv)
    return checked(Said(argv, status, out.getvalue(), err.getvalue()))


def run_apart(argv: tuple[str, ...]) -> Said:
    """As a user does."""
    code = "import sys; from memfit.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *argv], capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    return checked(Said(argv, done.returncode, done.stdout, done.stderr))


def checked(said: Said) -> Said:
    """A command is fine, judges against what it was given, or refuses in one line; anything else has fallen."""
    command = " ".join(said.argv)
    if "Traceback" in said.err:
        raise Fell(f"memfit {command} ended in a traceback:\n{said.err}")
    if said.status not in (FINE, JUDGED_AGAINST, REFUSED):
        raise Fell(f"memfit {command} ended with status {said.status}: {said.err}")
    if said.refused and not (said.err.startswith("memfit: error: ") and said.err.count("\n") == 1):
        raise Fell(f"memfit {command} refused, but not in one line: {said.err!r}")
    if "more memory than there is" in said.err or "more memory than this machine has" in said.err:
        raise Fell(f"memfit {command} took all the memory it was allowed")
    return said
