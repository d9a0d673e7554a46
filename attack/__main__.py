"""``python -m attack``: all attacks, one after the other, each for its share of the time."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys

# One thread: children are forked, and threads do not survive that.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from attack.protocol import Attack
from attack.runner import Result, run_attack
from attack.table import show_falls, show_table


def main() -> int:
    args = _parser().parse_args()
    attacks = [attack for attack in find_attacks(args.attacks) if not args.only or attack.name in args.only]
    if not attacks:
        print(f"there is no attack {', '.join(args.only)}", file=sys.stderr)
        return 2
    total, results = sum(attack.share for attack in attacks), []
    for attack in attacks:
        seconds = None if args.cases is not None else args.seconds * attack.share / total
        result = run_attack(attack, args.seed, seconds=seconds, num_cases=args.cases, only_case=args.case)
        _tell(result, args.seed)
        results.append(result)
    print(show_table(results, args.seed))
    return 1 if any(result.fallen or not result.cases for result in results) else 0


def find_attacks(package: str) -> list[Attack]:
    """Every ``ATTACK`` in the modules of a package."""
    folder = importlib.import_module(package)
    modules = [importlib.import_module(f"{package}.{found.name}") for found in pkgutil.iter_modules(folder.__path__)]
    return [module.ATTACK for module in modules]


def _tell(result: Result, seed: int) -> None:
    """What fell is shown when its attack is over: the whole takes an hour, and may be cut short."""
    lines = [f"{result.attack.name}: {result.cases:,} cases, {len(result.fallen)} fell", *show_falls(result, seed)]
    print(*lines, sep="\n", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m attack", description="Attacks memfit; exits with 1 if anything fell.")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all attacks together; 600 by default")
    parser.add_argument("--cases", type=int, help="in place of a time: so many cases of each")
    parser.add_argument("--seed", type=int, default=0, help="everything follows from it; 0 by default")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="some attacks; can be given several times")
    parser.add_argument("--case", type=int, metavar="NUMBER", help="one case, with --only")
    parser.add_argument("--attacks", default="attack.attacks", metavar="PACKAGE", help="where the attacks are")
    return parser


if __name__ == "__main__":
    sys.exit(main())
