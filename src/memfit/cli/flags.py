"""The flags of predict, compare, plan and run, and what they become: one word means the same to all of them.

::

    add_subject, add_recipe, add_options ──> argparse ──> read_subject, read_words, read_options ──> memfit.job
"""

from __future__ import annotations

import argparse
import ast
from pathlib import Path
from typing import Any, Final, TypeVar

from memfit.choices import AXES
from memfit.cli.outputs import RUN
from memfit.errors import ConfigError
from memfit.hardware import gpus
from memfit.job import PredictOptions, Subject
from memfit.models import MODELS

Number = TypeVar("Number", int, None)

# -- what the flags are ------------------------------------------------------------------------------------------------------------


def add_subject(parser: argparse.ArgumentParser, function_help: str) -> None:
    parser.add_argument("function", nargs="?", default="", metavar="FILE.py:FUNCTION", help=function_help)
    parser.add_argument("--model", default="", metavar="NAME", help=f"a model by name, in place of a function: {', '.join(MODELS)}")
    parser.add_argument(
        "--hf",
        default="",
        metavar="CONFIG",
        help="a Hugging Face config.json, its folder, or a name in the cache of the hub, in place of a function; no weights",
    )


def add_recipe(parser: argparse.ArgumentParser, title: str) -> None:
    group = parser.add_argument_group(title)
    for name, axis in AXES.items():
        alone: dict[str, Any] = {"nargs": "?", "const": axis.bare} if axis.bare else {}
        group.add_argument(*axis.flags, dest=name, metavar=name.upper(), help=axis.help, **alone)
    group.add_argument("--axis", action="append", default=[], metavar="NAME=A,B", help="any other argument of your function")


_DESCRIBED: Final = "as it is described: 24GiB, RTX-4090=48GiB, A100-80GB=0.5, 'A100-80GB MIG 3g.40gb', my-card.toml"


def known_gpus() -> str:
    """What ``--gpu`` takes."""
    return f"{', '.join(gpu.name for gpu in gpus())}, another by its name, or {_DESCRIBED}"


def add_options(parser: argparse.ArgumentParser, *, several: bool = False, launches: bool = False) -> None:
    """On what is predicted, and how. ``several`` GPUs and world sizes for a grid; ``launches`` where a launcher may say how many
    processes there are."""
    which = f"the kind of GPU: {known_gpus()}; H200 by default"
    more = ",..." if several else ""
    parser.add_argument("--gpu", default="H200", metavar=f"GPU{more}", help=which)
    number = "processes, one per GPU; " + ("not needed where a launcher says it" if launches else "1 by default")
    parser.add_argument("--world-size", "--nproc", metavar=f"N{more}", help=number)
    usual = "3, and more while memory still grows or an optimizer waits" if launches else "3"
    parser.add_argument("--steps", type=int, metavar="N", help=f"training steps; by default {usual}")
    parser.add_argument(
        "--torch-version",
        default="",
        metavar="VERSION",
        help="the version of torch whose kernels and allocator are used: 2.11+cu130, ...",
    )
    parser.add_argument("--alloc-conf", default="", metavar="CONF", help="as in PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument(
        "--interconnect",
        default="",
        metavar="LINKS",
        help="how GPUs are linked, for the time of collectives: 8xH100-NVLink+400G; by default as nodes of such GPUs usually are; "
        "none: communication takes no time",
    )
    parser.add_argument(
        "--expected",
        action="append",
        default=[],
        metavar="WHAT=VALUE",
        help="a value to assume where it depends on data: mask=0.25, train.py:31=128; can be given several times",
    )
    parser.add_argument(
        "--imbalance",
        type=float,
        metavar="X",
        help="routed experts: the busiest receives X times the mean, on the rank that has it; 1 by default, an even share for each",
    )

    parser.add_argument(
        "--longest",
        type=int,
        metavar="N",
        help="tokens of the longest sequence of the data: "
        + ("an early batch of the training data is padded to it" if launches else "the second step has them, all others --seq"),
    )


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """Which processes of the job are predicted."""
    parser.add_argument("--rank", type=int, metavar="N", help="which of the processes to predict; by default the first of its node")
    parser.add_argument(
        "--ranks",
        metavar="RANKS",
        help="all: one of each kind of rank (pipeline stages, unequal shards), side by side, and the verdict of the worst; or "
        "numbers with commas between",
    )


def add_host_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host-memory", metavar="SIZE", help="of a node, as in 512GiB: says whether what tensors take on the host fits"
    )


def add_output(parser: argparse.ArgumentParser, what: str, default: str | None, *others: str) -> None:
    """``--out``, ``-o`` and other names for the same."""
    usual = f"; {default} by default" if default else ""
    path = Path(default) if default else None
    parser.add_argument(
        "--out",
        "-o",
        *others,
        type=Path,
        default=path,
        metavar="FILE",
        help=f"where to write {what}; - for the standard output{usual}",
    )


def add_file(parser: argparse.ArgumentParser, what: str) -> None:
    """``FILE``, which a command reads: the ledger of the last run where none is named."""
    parser.add_argument("file", nargs="?", default=RUN, type=Path, metavar="FILE", help=f"{what}; {RUN} by default")


def add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--report", type=Path, metavar="FILE", help="where to write the same as a page, to open in a browser")


def add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=int, metavar="N", help="predictions at a time; one per core by default")


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-cache", action="store_true", help="predict everything again, and keep nothing for the next time")


KEPT: Final = "What is done is kept: the same command continues from there."
"""Said where a command is stopped that keeps predictions for the next time."""


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_true", help="for programs: one JSON object; what your code prints goes to the standard error"
    )


# -- what they become --------------------------------------------------------------------------------------------------------------


def read_subject(args: argparse.Namespace) -> Subject:
    return Subject.of(args.function, args.model, args.hf)


def read_words(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of a recipe or a function that were given, each with its values."""
    found = {name: read_values(name, getattr(args, name)) for name in AXES if getattr(args, name) is not None}
    return found | dict(map(_axis, args.axis))


def read_options(args: argparse.Namespace, **others: Any) -> PredictOptions:
    """What a single prediction is made on; ``others`` are options that a command reads in its own way."""
    given = {"gpu": args.gpu, "world_size": read_world_size(args, 1), "rank": args.rank or 0, "host_memory": args.host_memory}
    return PredictOptions(**given | read_common(args) | others)


def read_world_size(args: argparse.Namespace, default: Number) -> int | Number:
    return default if args.world_size is None else _number("world_size", args.world_size)


def read_common(args: argparse.Namespace) -> dict[str, Any]:
    """What all predictions of a command have in common."""
    said = {"imbalance": args.imbalance, "longest": args.longest}
    return {
        "steps": 3 if args.steps is None else args.steps,
        "torch_version": args.torch_version,
        "alloc_conf": args.alloc_conf,
        "interconnect": args.interconnect,
        "expected": _expected(args.expected) | {name: value for name, value in said.items() if value is not None},
    }


def read_ranks(text: str | None) -> str | list[int] | None:
    """``all``, or ``0,7``."""
    if text is None or text == "all":
        return text
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(f"cannot read {text!r} as ranks: say all, or numbers with commas between") from None


def read_values(name: str, text: str) -> list[Any]:
    """``full_shard,no_shard`` and ``8,64``."""
    words = [word.strip() for word in text.split(",")]
    if name == "mesh" and "=" in text:
        return _meshes(words)
    if not all(words):
        raise ConfigError(f"cannot read {text!r} for {name}: write values with commas between, like A,B")
    is_number = name == "world_size" or (name in AXES and AXES[name].is_number)
    return [_number(name, word) for word in words] if is_number else words


def _expected(texts: list[str]) -> dict[str, float]:
    if not texts:
        return {}
    from memfit.phantom.values.assumptions import Expected  # it is the phantom's, and brings torch

    return dict(Expected.parse(texts).by_name)


def _axis(text: str) -> tuple[str, list[Any]]:
    """``layers=2,4`` and ``fused=True,False``: Python's own values where they are such, words otherwise."""
    name, equals, values = text.partition("=")
    if not equals or not name.isidentifier():
        raise ConfigError(f"cannot read --axis {text!r}: write it like layers=2,4")
    return name, [_value(word) for word in read_values(name, values)]


def _value(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word


def _meshes(words: list[str]) -> list[str]:
    """``dp=8,tp=8,dp=64``: a name that comes again begins the next mesh."""
    found: list[dict[str, str]] = [{}]
    for word in words:
        axis = word.partition("=")[0]
        if axis in found[-1]:
            found.append({})
        found[-1][axis] = word
    return [",".join(mesh.values()) for mesh in found]


def _number(name: str, word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise ConfigError(f"{name.replace('_', '-')} takes whole numbers, not {word!r}") from None
