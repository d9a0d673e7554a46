"""What ``memfit max-batch`` and ``memfit max-seq`` take, and what they do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from memfit.cli.commands.plan import LAUNCHERS
from memfit.cli.flags import (
    add_cache,
    add_jobs,
    add_json,
    add_options,
    add_recipe,
    add_subject,
    read_options,
    read_subject,
    read_words,
    read_world_size,
)
from memfit.cli.outputs import stdout_console, stdout_kept_clean
from memfit.cli.progress import telling
from memfit.errors import ConfigError
from memfit.largest.api import USUAL_MULTIPLE, Progress, find
from memfit.largest.result import LargestFit


def add_flags(parser: argparse.ArgumentParser, axis: str) -> None:
    add_subject(parser, f"a function that returns step(), called with {axis}=N; or a script and its arguments, with {{}} for N")
    add_options(parser)
    parser.add_argument("--vary", default="", metavar="NAME", help=f"the function's argument to vary; {axis} by default")
    parser.add_argument(
        "--multiple", type=int, default=0, metavar="N", help=f"only multiples of it; {USUAL_MULTIPLE[axis]} by default"
    )
    parser.add_argument("--margin", type=float, default=0.0, metavar="SHARE", help="of the memory, to stay free: 0 by default")
    add_jobs(parser)
    add_cache(parser)
    add_recipe(parser, "how a model by name is trained")
    add_json(parser)
    parser.set_defaults(rank=None, host_memory=None)


def split_program(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words for memfit, and from the first script or launcher on those of a program; none where no program is asked about."""
    start = next((place for place, word in enumerate(words) if word.endswith(".py") or word in LAUNCHERS), len(words))
    return [word for word in words[:start] if word != "--"], list(words[start:])


def find_and_tell(axis: str, args: argparse.Namespace) -> int:
    """Exit status 1 if not even the smallest fits."""
    found = _of_program(axis, args) if args.program else _of_subject(axis, args)
    if args.json:
        print(json.dumps(found.to_json()))
    else:
        stdout_console().print(found)
    return 0 if found.value else 1


def _of_subject(axis: str, args: argparse.Namespace) -> LargestFit:
    words, options = read_words(args), read_options(args)
    with _telling(args.vary or axis) as progress:
        about = {
            "multiple": args.multiple,
            "margin": args.margin,
            "jobs": args.jobs,
            "cache": not args.no_cache,
            "vary": args.vary,
            "progress": progress,
        }
        return find(axis, read_subject(args), vars(options) | about | words)


def _of_program(axis: str, args: argparse.Namespace) -> LargestFit:
    from memfit.largest.scripts import PLACE, check_place, largest_of_script
    from memfit.predict.scripts.dry_run import choose_keeper
    from memfit.predict.scripts.launchers import read_command

    if read_words(args) or args.model or args.hf:
        raise ConfigError("a script says itself how it trains: give it flags of its own, behind its name")
    check_place(args.program, axis)
    world = read_command([word.replace(PLACE, "1") for word in args.program], read_world_size(args, None)).world
    options = replace(read_options(args, world_size=world.world_size), rank=world.rank)
    keeper = choose_keeper()
    print(f"memfit: {keeper.before}", file=sys.stderr, flush=True)
    with stdout_kept_clean(wanted=True), _telling(axis) as progress:
        return largest_of_script(
            args.program, options, keeper, progress, axis=axis, multiple=args.multiple or 1, margin=args.margin
        )


@contextmanager
def _telling(name: str) -> Iterator[Progress]:
    """Tells how far it is, and what is known where the user ends it."""
    known = "nothing is known yet"
    with telling("Predicting") as tell:

        def progress(done: int, most: int | None, best: int) -> None:
            nonlocal known
            known = f"{name} {best} fits" if best else "nothing fits so far"
            tell(done, most, known)

        try:
            yield progress
        except KeyboardInterrupt:
            print(f"memfit: {known}", file=sys.stderr)
            raise
