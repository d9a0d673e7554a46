"""How far a reader has to walk: the source files, packages and changes of package behind one command.

::

    python benchmarks/walk.py            predict and track
    python benchmarks/walk.py predict    ``memfit predict --model gpt2 --world-size 8 --gpu H100-80GB``
    python benchmarks/walk.py track      ``memfit.track`` of a step on the CPU, from entering to the saved ledger
    python benchmarks/walk.py predict --files    also names the files, with how many functions of each ran

Functions of memfit and bodies of its classes are listed in the order in which they first run. ``files`` have at least one of them;
``switches`` counts how often two that follow one another in that list are in different packages of ``src/memfit`` (a module at the
top is its own). A class counts where its module is imported, so that importing what is not needed is a walk, too; ``--calls``
leaves classes out. Torch and, for predict, ``memfit.cli`` are imported before the count begins. Every path has its own process.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import io
import itertools
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import memfit

ROOT = Path(__file__).resolve().parents[1] / "src" / "memfit"
PREDICT = "predict --model gpt2 --world-size 8 --gpu H100-80GB"


def predict(folder: Path) -> None:
    from memfit.cli import main

    main([*PREDICT.split(), "--out", str(folder / "run.memfit")])


def track(folder: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    with memfit.track(model, optimizer) as tracker:
        for _ in range(2):
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    tracker.ledger.save(folder / "run.memfit")


PATHS: dict[str, Callable[[Path], None]] = {"predict": predict, "track": track}

FIRST = {"predict": "memfit.cli", "track": "memfit"}
"""What is imported before the count begins."""


class Walk:
    """The functions of memfit in the order of their first call."""

    def __init__(self, *, calls_only: bool = False) -> None:
        self._calls_only = calls_only
        self.functions: dict[CodeType, Path] = {}
        self._others: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self.functions or code in self._others:
            return
        path, is_function = Path(code.co_filename), bool(code.co_flags & inspect.CO_OPTIMIZED)
        # Modules, lambdas and generators are read as part of what is around them.
        if ROOT in path.parents and not code.co_name.startswith("<") and (is_function or not self._calls_only):
            self.functions[code] = path.relative_to(ROOT)
        else:
            self._others.add(code)

    def files(self) -> Counter[Path]:
        return Counter(self.functions.values())

    def num_switches(self) -> int:
        packages = [path.parts[0] for path in self.functions.values()]
        return sum(one != other for one, other in itertools.pairwise(packages))

    def __str__(self) -> str:
        files = self.files()
        packages = {path.parts[0] for path in files}
        return f"{len(self.functions)} functions, {len(files)} files, {len(packages)} packages, {self.num_switches()} switches"


def walk(name: str, *, calls_only: bool = False) -> Walk:
    found = Walk(calls_only=calls_only)
    importlib.import_module(FIRST[name])
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(found)
        try:
            PATHS[name](Path(folder))
        finally:
            sys.setprofile(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", nargs="?", choices=[*PATHS], help="one path, counted in this process")
    parser.add_argument("--calls", action="store_true", help="without the bodies of classes")
    parser.add_argument("--files", action="store_true", help="names every file, and how many functions of it were called")
    args = parser.parse_args()
    if args.path is None:
        for name in PATHS:
            subprocess.run([sys.executable, __file__, name, *sys.argv[1:]], check=True)
        return
    found = walk(args.path, calls_only=args.calls)
    print(f"{args.path}: {found}")
    if args.files:
        for path, count in found.files().items():
            print(f"{count:5} {path}")


if __name__ == "__main__":
    main()
