"""``memfit predict``: a function that builds a training step, on a GPU that is not there."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from memfit.cli.fit import PIPE_WIDTH, verdict_sections
from memfit.errors import ConfigError
from memfit.hardware import GPUS
from memfit.views.escaping import printable

if TYPE_CHECKING:
    from memfit.prediction import Prediction


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "predict",
        help="what a training step will need, without a GPU",
        description="Calls a function of yours that returns a training step, runs the step on a GPU that is not there, and says "
        "whether it fits.",
    )
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="a function without arguments that returns step()")
    parser.add_argument("--world-size", type=int, default=1, metavar="N", help="processes, one a GPU; 1 by default")
    parser.add_argument("--rank", type=int, default=0, metavar="N", help="which of them to be; 0 by default")
    add_target(parser)


def add_target(parser: argparse.ArgumentParser) -> None:
    """The flags that predicting a function and predicting a script share."""
    parser.add_argument("--gpu", default="H200", help=f"one of {', '.join(gpu.name for gpu in GPUS)}; H200 by default")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="training steps; 3 by default")
    parser.add_argument("--torch-version", metavar="VERSION", help="whose kernels and allocator: 2.11+cu130, ...")
    parser.add_argument("--alloc-conf", default="", metavar="CONF", help="as in PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument("--out", type=Path, default=Path("run.memfit"), metavar="FILE", help="the ledger; run.memfit by default")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")


def run(args: argparse.Namespace) -> int:
    from memfit.phantom.target import DEFAULT_TORCH
    from memfit.prediction import predict

    prediction = predict(
        _load(args.function),
        gpu=args.gpu,
        world_size=args.world_size,
        rank=args.rank,
        steps=args.steps,
        torch_version=args.torch_version or DEFAULT_TORCH,
        alloc_conf=args.alloc_conf,
    )
    tell(prediction, args)
    return 0


def _load(name: str) -> Callable[[], Any]:
    path, _, function = name.rpartition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path) if path.endswith(".py") else None
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise ConfigError(f"cannot read {name!r} as a function in a file: write it like train.py:build")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if not callable(found):
        raise ConfigError(f"{path} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def tell(prediction: Prediction, args: argparse.Namespace) -> None:
    """Writes the ledger and says what came out."""
    prediction.ledger.save(args.out)
    if args.json:
        figures = prediction.verdict.to_json() | {"assumptions": prediction.assumptions, "ledger": str(args.out)}
        print(json.dumps(figures))
        return
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    console.print(*verdict_sections(prediction.verdict, console), sep="\n")
    for sentence in prediction.assumptions:
        console.print(Text(f"assumed: {printable(sentence)}", style="dim"))
    console.print(Text(f"The ledger is in {printable(str(args.out))}: memfit show {printable(str(args.out))}"))
