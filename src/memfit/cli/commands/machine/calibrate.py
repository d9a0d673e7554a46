"""``memfit calibrate``: measures the GPU of this machine, and writes what memfit needs of it."""

from __future__ import annotations

import argparse
import datetime
import time
from pathlib import Path

from memfit import __version__
from memfit.errors import ConfigError
from memfit.views.words.calibration import calibration_lines


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    summary = "measure the GPU of this machine, and write what memfit needs of it"
    parser = subparsers.add_parser(
        "calibrate",
        help=summary,
        description=(
            f"{summary.capitalize()}: what a process takes beside its tensors, kernels, copies, the host's pace. It takes less "
            "than three minutes and at most a fifth of the GPU's memory; nothing else should run on it. Ctrl-C keeps what was "
            "measured until then. --gpu FILE uses the file anywhere."
        ),
        examples=(("memfit calibrate -o mine.toml", "then, anywhere: memfit predict --model gpt2 --gpu mine.toml"),),
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("gpu.toml"), metavar="FILE", help="gpu.toml by default")
    parser.add_argument(
        "--seconds", type=float, default=150.0, metavar="S", help="no further part begins after these; 150 by default"
    )
    parser.add_argument(
        "--name", default="", help="what to call the card, as one of which nothing is published; by default its own name"
    )


def run(args: argparse.Namespace) -> int:
    from memfit.calibrate.cuda import CudaMeter
    from memfit.calibrate.session import conclude, measure

    if args.out.suffix != ".toml":
        raise ConfigError(f"the file must end in .toml, so that --gpu can tell it from a name: {args.out}")
    began = time.monotonic()
    measured = measure(CudaMeter(), seconds=args.seconds, tell=lambda line: print(line, flush=True))
    print("fitting rates", flush=True)
    about = {"memfit_version": __version__, "date": datetime.date.today().isoformat(), "seconds": round(time.monotonic() - began)}
    done = conclude(measured, name=args.name, about=about)
    args.out.write_text(done.to_toml(), encoding="utf-8")
    print("\n".join(calibration_lines(done, args.out)))
    return 0
