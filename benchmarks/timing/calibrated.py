"""The blind proof of ``memfit calibrate``: an H200 that nobody knows, measured in three minutes, predicts as well as the known one?

    python benchmarks/timing/calibrated.py --measure FOLDER      # on the GPU, 180 s: FOLDER/calibration.json and FOLDER/card.toml
    python benchmarks/timing/calibrated.py [NAME ...]            # anywhere: predicts, writes results/calibrated.md and .json
    python benchmarks/timing/calibrated.py --operators [NAME ...]  # the same from a part of truth/operator_times.json

The H200's file is taken away: the fit begins with numbers that were spoiled, each section and kind by up to two times and each
number by a fifth more, and the card is called unknown-hopper, so that nothing published of it is used either. What ``--measure``
found is in ``truth/calibration.json``. Measured step times are those of ``step_time.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "calibration.json"
OPERATORS = BENCHMARKS / "truth" / "operator_times.json"
RESULTS = BENCHMARKS / "results" / "calibrated"
NAME = "unknown-hopper"
OF_OPERATORS = 0.3
"""The part of the older measurements that stands for a calibration."""


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


def measure_here(folder: pathlib.Path, seconds: float) -> None:
    """Writes after every part: a run that is cut keeps what it has."""
    from memfit.calibrate.cuda import CudaMeter
    from memfit.calibrate.session import conclude, measure

    began, meter = time.monotonic(), CudaMeter()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True)

    measured = measure(meter, seconds=seconds, tell=tell)
    (folder / "calibration.json").write_text(json.dumps(to_json(measured), indent=1))
    tell("measured")
    done = conclude(measured, name=NAME, about={"seconds": round(time.monotonic() - began)})
    (folder / "card.toml").write_text(done.to_toml())
    tell(f"fitted: off by {done.fitted.before:.1%} before, {done.fitted.after:.1%} after; {measured.errors}")
    if measured.memory is not None:
        tell(str(measured.memory))


def to_json(measured: Any) -> dict[str, Any]:
    calls = [[str(each.call), each.seconds, each.allow_tf32] for each in measured.calls]
    return {**asdict_without_calls(measured), "calls": calls}


def asdict_without_calls(measured: Any) -> dict[str, Any]:
    memory = asdict(measured.memory) if measured.memory is not None else None
    return {
        "card": asdict(measured.card),
        "memory": memory,
        "host": measured.host,
        "sustained": measured.sustained,
        "copies": measured.copies,
        "errors": measured.errors,
    }


# -- anywhere --------------------------------------------------------------------------------------------------------------------


def read_measurements() -> Any:
    from memfit.calibrate.fitting import TimedCall
    from memfit.calibrate.meter import CardFacts, Measurements, MemoryFacts
    from memfit.timing import Call

    found = json.loads(TRUTH.read_text())
    found["card"]["capability"] = tuple(found["card"]["capability"])
    calls = [TimedCall(Call.parse(text), seconds, tf32) for text, seconds, tf32 in found.pop("calls")]
    memory = MemoryFacts(**found.pop("memory")) if found["memory"] else found.pop("memory")
    return Measurements(card=CardFacts(**found.pop("card")), memory=memory, calls=calls, **found)


def from_operators() -> Any:
    """What a calibration would have measured, from older measurements of the same card."""
    from memfit.calibrate.fitting import TimedCall
    from memfit.calibrate.meter import CardFacts, Measurements
    from memfit.timing import Call
    from memfit.units import MIB

    found, chance, calls = json.loads(OPERATORS.read_text()), random.Random(0), []
    for family, each in found["families"].items():
        for text, entry in each["calls"].items() if family != "copies" else ():
            call = Call.parse(text)
            is_small = sum(tensor.size_bytes for tensor in (*call.inputs, *call.outputs)) < 2**30
            if "hot" in entry and is_small and chance.random() < OF_OPERATORS:
                microseconds = math.sqrt(max(entry["hot"], 0.5) * max(entry.get("cold", entry["hot"]), 0.5))
                calls.append(TimedCall(call, microseconds * 1e-6, family == "tf32"))
    card = CardFacts(
        name=found["gpu"], capability=(9, 0), num_sms=132, total_bytes=143771 * MIB, usable_bytes=150_109_880_320,
        l2_cache_bytes=60 * MIB, clock_hertz=1.98e9, memory_bandwidth=4.917e12, versions={"torch": found["torch"]},
    )  # fmt: skip
    host = {name: value for name, value in found["host"].items() if isinstance(value, float)}
    sustained = {"bf16": statistics.mean(found["sustained"][name]["last"] for name in ("bf16 8192", "bf16 4096")) * 1e12}
    copies = {"pinned_to": 55.5e9, "pinned_from": 55.5e9, "pageable_to": 7.5e9, "pageable_from": 12.7e9}
    return Measurements(card=card, host=host, sustained=sustained, copies=copies, calls=calls)


def spoiled_template() -> dict[str, Any]:
    """The H200's numbers, made wrong: nothing but measurements can bring them back."""
    from memfit.data import FOLDER, read_toml
    from memfit.timing.leaves import find_leaves, scaled

    tables, chance, factors = read_toml(FOLDER / "rates" / "h200.toml"), random.Random(1), {}
    leaves = find_leaves(tables)
    for leaf in leaves:
        factors.setdefault((leaf.section, leaf.kind), math.exp(chance.uniform(-0.7, 0.7)))
    wrong = scaled(tables, {leaf: factors[leaf.section, leaf.kind] * math.exp(chance.uniform(-0.2, 0.2)) for leaf in leaves})
    wrong["products"]["sustained_share"] = 0.4
    return {
        **wrong,
        "host": spoiled_host(wrong["host"], 1.7),
        "transfers": {**wrong["transfers"], "pageable_to": 3, "pageable_from": 3},
    }


def spoiled_host(value: Any, by: float, name: str = "") -> Any:
    from memfit.calibrate.host import UNSCALED

    if isinstance(value, dict):
        return {key: spoiled_host(each, by, key) for key, each in value.items()}
    if isinstance(value, list):
        return [spoiled_host(each, by) for each in value]
    return value if name in UNSCALED else value * by


def predict_all(card: pathlib.Path, names: list[str]) -> dict[str, dict[str, Any]]:
    script, found = pathlib.Path(__file__).with_name("step_time.py"), {}
    for name in names:
        asked = [sys.executable, str(script), "--predict-here", name, "--gpu", str(card)]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
        found[name] = json.loads(line[7:]) if line else {"error": done.stderr[-300:]}
        print(f"{name:28s} {found[name].get('ms', found[name].get('error'))}", flush=True)
    return found


def prove(names: list[str], with_operators: bool, predicts: bool) -> None:
    from benchmarks.timing import step_time
    from memfit.calibrate.session import conclude

    began = time.process_time()
    done = conclude(from_operators() if with_operators else read_measurements(), name=NAME, template=spoiled_template())
    spent = time.process_time() - began
    card = RESULTS.with_name("calibrated_card.toml")
    card.write_text(done.to_toml())
    print(f"off by {done.fitted.before:.1%} before, {done.fitted.after:.1%} after, {spent:.0f} s of processor time", flush=True)
    zoo = list(json.loads(step_time.ZOO_TRUTH.read_text())["steps"])
    known = json.loads(RESULTS.with_suffix(".json").read_text()) if RESULTS.with_suffix(".json").exists() else {}
    found = known | (predict_all(card, names or zoo) if predicts else {})
    RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    write_results(found, done, with_operators)


def write_results(found: dict[str, Any], done: Any, with_operators: bool) -> None:
    from benchmarks.timing import step_time

    truth, builtin = step_time.measured(), json.loads(step_time.RESULTS.with_suffix(".json").read_text())
    zoo = list(json.loads(step_time.ZOO_TRUTH.read_text())["steps"])
    memory = {entry["name"]: entry for entry in json.loads((BENCHMARKS / "results" / "accuracy.json").read_text())}
    names = [name for name in zoo if "ms" in found.get(name, {}) and "ms" in builtin.get(name, {})]
    of_both = [sorted(abs(each[name]["ms"] / truth[name] - 1) for name in names) for each in (found, builtin)]
    measured = "a part of truth/operator_times.json" if with_operators else "truth/calibration.json"
    lines = [
        "# An H200 that nobody knows, calibrated: step times against the built-in rates",
        "",
        f"Written by `python benchmarks/timing/calibrated.py`, from {measured}: {len(done.measured.calls)} calls. The fit",
        f"began with spoiled numbers, {done.fitted.before:.1%} off in the median, and ended {done.fitted.after:.1%} off.",
        "",
        "| | calibrated | built in |",
        "|---|---:|---:|",
        f"| median | {statistics.median(of_both[0]):.1%} | {statistics.median(of_both[1]):.1%} |",
        f"| nine in ten | {of_both[0][int(0.9 * len(names))]:.1%} | {of_both[1][int(0.9 * len(names))]:.1%} |",
        f"| worst | {of_both[0][-1]:.1%} | {of_both[1][-1]:.1%} |",
        "",
        "| workload | measured ms | calibrated | built in | allocated, against the built-in card |",
        "|---|---:|---:|---:|---|",
    ]
    for name in names:
        said = [f"{each[name]['ms'] / truth[name] - 1:+.1%}" for each in (found, builtin)]
        known = memory.get(name)
        same = "" if known is None else f"{found[name]['peak_allocated'] / known['peak'] - 1:+.2%}"
        lines.append(f"| {name} | {truth[name]:,.1f} | {said[0]} | {said[1]} | {same} |")
    RESULTS.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines[:12]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--measure", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=130.0)
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--table", action="store_true", help="writes the table again")
    options = parser.parse_args()
    if options.measure:
        measure_here(options.measure, options.seconds)
    else:
        prove(options.workloads, options.operators, predicts=not options.table)
