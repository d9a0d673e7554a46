"""Figures that others published of training on their GPUs, predicted here.

    python benchmarks/published/run.py                                 # all files of rows/
    python benchmarks/published/run.py --rows FILE.csv [FILE.csv ...]  # any file with the columns of those in rows/
    python benchmarks/published/run.py --table                         # nothing is predicted: tables and docs/published.svg again

A row becomes a prediction by ``readers.py``, which says why where it cannot. ``results/published_predictions.json`` keeps what
was predicted: what is there is not predicted again, also for rows of other files that are the same run. Predictions that need no
script run in children of one warm process. The real libraries and scripts: ``pip install timm peft litgpt bitsandbytes torchao``,
and ``--checkouts FOLDER`` with modded-nanogpt, Megatron-LM, peft and litgpt in it, at the commits of rows/README.md.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import pathlib
import re
import signal
import sys
import time
import warnings
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.published.cases import Case
from benchmarks.published.readers import read_row
from benchmarks.published.scripts import predict_script
from benchmarks.published.tables import write_picture, write_tables

BENCHMARKS = pathlib.Path(__file__).parents[1]
PREDICTIONS = BENCHMARKS / "results" / "published_predictions.json"
SECONDS = 300
"""Of one prediction in a child."""


def read_files(files: list[pathlib.Path]) -> list[Case]:
    cases = []
    for file in files:
        with file.open(encoding="utf-8", newline="") as handle:
            cases += [read_row(file.stem, number, row) for number, row in enumerate(csv.DictReader(handle))]
    return cases


def predict_here(case: Case) -> dict[str, Any]:
    """What memfit says of a case that is not a script."""
    from functools import partial

    import memfit
    from benchmarks.published.build import BUILDS

    asked = dict(case.words) if case.kind == "model" else {"build": partial(BUILDS[case.kind], **case.words)}
    asked |= {"gpu": case.gpu, "world_size": case.num_gpus, "steps": case.steps}
    asked |= {"interconnect": case.interconnect} if case.interconnect else {}
    found = memfit.predict(**asked, torch_version=case.torch_version, alloc_conf=case.alloc_conf)
    seconds = found.step_seconds
    between = found.step_seconds_range
    return {
        "peak_allocated": found.peak_allocated,
        "peak_reserved": found.peak_reserved,
        "context": found.target.gpu.context_bytes,
        "fits": found.fits,
        "step_seconds": seconds,
        "slowest_seconds": between[1] if between else None,
        "per_second": case.units_per_step / seconds if seconds else None,
        "basis": found.time.basis[:80] if found.time else "",
    }


def in_a_child(case: Case) -> dict[str, Any]:
    """``predict_here`` in a fork of this process, which has imported what all need; an error is its last line."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        os.close(reader)
        signal.alarm(SECONDS)
        try:
            answer = {"predicted": predict_here(case)}
        except BaseException as error:
            first = error.__cause__ or error
            answer = {"error": f"{type(first).__name__}: {first}".splitlines()[0][:200]}
        with os.fdopen(writer, "w") as out:
            json.dump(answer, out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"took more than {SECONDS} seconds, or was killed"}


def keep(key: str, entry: dict[str, Any], known: dict[str, Any]) -> None:
    """In the file, which other processes may have written meanwhile, and in ``known``."""
    if PREDICTIONS.exists():
        known |= json.loads(PREDICTIONS.read_text())
    known[key] = entry
    written = PREDICTIONS.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(known, indent=1) + "\n")
    written.replace(PREDICTIONS)


def predict_all(cases: list[Case], known: dict[str, Any], checkouts: pathlib.Path, seconds: float) -> None:
    import torch  # noqa: F401 - children are forks of a process that has it
    import transformers  # noqa: F401

    import memfit.cli  # noqa: F401

    began = time.monotonic()
    for case in cases:
        if case.why_not or "predicted" in known.get(case.key, {}):
            continue
        if time.monotonic() - began > seconds:
            return
        before = time.process_time() + sum(os.times()[2:4])
        if case.kind == "script":
            try:
                entry: dict[str, Any] = {"predicted": predict_script(case, checkouts)}
            except Exception as error:
                entry = {"error": f"{error}"[-300:]}
        else:
            entry = in_a_child(case)
        entry["cpu_seconds"] = round(time.process_time() + sum(os.times()[2:4]) - before, 1)
        entry |= {"first": case.name, "made": time.strftime("%Y-%m-%d", time.gmtime())}
        if "needs a checkout" in entry.get("error", ""):
            known[case.key] = entry  # somebody else may have it
        else:
            keep(case.key, entry, known)
        found = entry.get("predicted", {})
        said = entry.get("error") or [found["peak_allocated"], found["peak_reserved"], found["per_second"]]
        print(
            f"{time.monotonic() - began:6.0f} s  {case.name[:70]:70s} {dict(case.memory)} {case.per_second:.4g} {said}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="*", type=pathlib.Path, default=[])
    parser.add_argument("--only", default="", metavar="PATTERN", help="only rows whose name has it, as a regular expression")
    parser.add_argument("--seconds", type=float, default=1e9, help="no further row begins after these")
    parser.add_argument("--sample", type=int, default=1, metavar="N", help="one of N rows, by a hash of their names")
    parser.add_argument("--checkouts", type=pathlib.Path, default=pathlib.Path(os.environ.get("PUBLISHED_CHECKOUTS", "checkouts")))
    parser.add_argument("--table", action="store_true", help="predict nothing")
    options = parser.parse_args()
    os.environ["PUBLISHED_CHECKOUTS"] = str(options.checkouts.resolve())
    warnings.filterwarnings("ignore")
    files = options.rows or sorted((pathlib.Path(__file__).parent / "rows").glob("*.csv"))
    cases = read_files(files)
    known = json.loads(PREDICTIONS.read_text()) if PREDICTIONS.exists() else {}
    if not options.table:
        wanted = [case for case in cases if re.search(options.only, case.name) and int(case.key, 16) % options.sample == 0]
        predict_all(wanted, known, options.checkouts.resolve(), options.seconds)
    lines = write_tables(cases, known, BENCHMARKS / "results" / "published_rows.md" if not options.rows else None)
    if not options.rows:
        write_picture(cases, known, BENCHMARKS.parent / "docs" / "published.svg")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
