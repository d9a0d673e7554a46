"""``memfit calibrate``: measures the GPU of this machine, or learns from runs on it, and writes what memfit needs of it."""

from __future__ import annotations

import argparse
import datetime
import time
from collections.abc import Mapping
from pathlib import Path

from memfit import __version__
from memfit.errors import ConfigError
from memfit.views.words.calibration import calibration_lines, learned_lines


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "measure the GPU of this machine, and write what memfit needs of it"
    parser = subparsers.add_parser(
        "calibrate",
        help=summary,
        description=(
            "Measures the GPU of this machine, and writes what memfit needs of it: what a process takes beside its tensors, "
            "kernels, copies, the host's pace. It takes less than three minutes and at most a fifth of the GPU's memory; nothing "
            "else should run on it. Ctrl-C keeps what was measured until then. --gpu FILE uses the file anywhere. With --from, "
            "nothing is measured: step times of real runs correct the rates with which they were predicted."
        ),
        examples=(("memfit calibrate -o mine.toml", "then, anywhere: memfit predict --model gpt2 --gpu mine.toml"),),
    )
    parser.add_argument(
        "--out", "-o", type=Path, default=Path("gpu.toml"), metavar="FILE", help="where to write it; gpu.toml by default"
    )
    parser.add_argument("--seconds", type=float, default=150.0, metavar="S", help="no part begins after these; 150 by default")
    parser.add_argument("--name", default="", help="what to call the card: nothing that is published of it is used then")
    parser.add_argument(
        "--from",
        dest="runs",
        nargs="+",
        type=Path,
        default=[],
        metavar="RUN",
        help="ledgers of real runs, by memfit watch or track",
    )
    parser.add_argument(
        "--predicted", nargs="+", type=Path, default=[], metavar="RUN", help="with --from: ledgers of their predictions, in order"
    )


def run(args: argparse.Namespace) -> int:
    if args.out.suffix != ".toml":
        raise ConfigError(f"the file must end in .toml, so that --gpu can tell it from a name: {args.out}")
    about = {"memfit_version": __version__, "date": datetime.date.today().isoformat()}
    lines = _learn(args, about) if args.runs else _measure(args, about)
    print("\n".join(lines))
    return 0


def _measure(args: argparse.Namespace, about: Mapping[str, object]) -> list[str]:
    from memfit.calibrate.cuda import CudaMeter
    from memfit.calibrate.session import conclude, measure

    began = time.monotonic()
    measured = measure(CudaMeter(), seconds=args.seconds, tell=lambda line: print(line, flush=True))
    print("fitting rates", flush=True)
    done = conclude(measured, name=args.name, about={**about, "seconds": round(time.monotonic() - began)})
    args.out.write_text(done.to_toml(), encoding="utf-8")
    return list(calibration_lines(done, args.out))


def _learn(args: argparse.Namespace, about: Mapping[str, object]) -> list[str]:
    from memfit.calibrate.file import to_toml
    from memfit.calibrate.runs import learn
    from memfit.calibrate.session import tables_of
    from memfit.hardware import find_gpu
    from memfit.ledger import Ledger

    if len(args.predicted) != len(args.runs):
        raise ConfigError("--from takes as many runs as --predicted has predictions of them: memfit run --out makes one")
    pairs = [(Ledger.load(real), Ledger.load(predicted)) for real, predicted in zip(args.runs, args.predicted, strict=True)]
    names = {predicted.info.gpu for _, predicted in pairs}
    if len(names) != 1 or not (name := names.pop()):
        raise ConfigError("all predictions must be for one GPU")
    gpu = find_gpu(name)
    found = learn(pairs, tables_of(gpu))
    learned = {"learned_from": [str(path) for path in args.runs], "kernels": found.kernels or 1.0, "host": found.host or 1.0}
    found.tables["calibration"] = {**found.tables.get("calibration", {}), **about, **learned}
    args.out.write_text(to_toml(found.tables), encoding="utf-8")
    return list(learned_lines(found, gpu.name, args.out))
