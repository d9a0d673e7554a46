"""DeepSpeed, Megatron-core and a detector of torchvision as others measured them: how far off is what is predicted of them?

    python benchmarks/accuracy/h200_engines.py [ROW ...]      # results/h200_engines.{json,md}; all seven rows if none is named

The workloads are those of ``blind/``, under the names of ``truth/h200_engines.json``; each is predicted in a process of its own.
DeepSpeed 0.19.8, Megatron-core 0.19.2 and torchvision must be importable.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.blind import deepspeed_blind, libraries_blind, megatron_blind
from benchmarks.blind.two_sides import Sides, answer_in, compare, in_words, read

OWNERS = (deepspeed_blind.SIDES, megatron_blind.SIDES, libraries_blind.SIDES)


def owner(case: str) -> Sides:
    return next(sides for sides in OWNERS if case in sides.cases)


SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=("e_ds1", "e_ds3", "e_ds2_offload", "e_mc_tp2", "e_mc_pp2_0", "e_mc_moe", "l_tv_frcnn"),
    place=lambda case: owner(case).place(case),
    predict=lambda case: owner(case).predict(case),
    measure=lambda case, trace: owner(case).measure(case, trace),
    choose=lambda cases: cases,
    heading=(
        "DeepSpeed 0.19.8, Megatron-core 0.19.2 and torchvision's Faster R-CNN, measured by others on an H200, and what is "
        "predicted of them now: `python benchmarks/accuracy/h200_engines.py`. MiB.",
    ),
    footing=("", "Known when the engines were written: 0.5 % of what is allocated and 3 % of what is reserved must hold."),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", choices=[*SIDES.cases, []], help="all if none")
    for case in parser.parse_args().rows or read(SIDES.measured):
        done = subprocess.run(owner(case).command("--predict", case), capture_output=True, text=True)
        answer = answer_in(done.stdout, done.stderr)
        print(f"{case}: {in_words(answer)}", flush=True)
        SIDES.keep(SIDES.predicted, case, answer)
    compare(SIDES)


if __name__ == "__main__":
    main()
