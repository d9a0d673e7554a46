"""Rows that are predicted without a GPU and measured on one: a process for each, files for both sides, and the table of both.

::

    rows ──> --predict, some processes at a time ──────────────> results/NAME.json ─┐
         └─> --measure, as many as fit on the GPU side by side ─> truth/NAME.json ──┴─> --compare ──> results/NAME.md

A script says what its rows are (``Sides``), and ``main`` is its command line.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

BENCHMARKS = pathlib.Path(__file__).parents[1]
MIB = 2**20
ANSWER = "ANSWER "
"""Begins the line in which a process answers, among whatever else it prints."""
USABLE, CONTEXT, SAFETY = 138 * 2**30, 3 * 2**29, 1.04
"""Of an H200: what processes side by side can have, what each takes beside its tensors, and how far a prediction may be off."""


@dataclass(frozen=True, kw_only=True)
class Sides:
    """What a script compares."""

    script: pathlib.Path
    cases: tuple[str, ...]
    """All of them, in the order of the table."""
    place: Callable[[str], tuple[str, str]]
    """The name of a case's row, and which rank of how many it is."""
    predict: Callable[[str], dict]
    measure: Callable[[str, pathlib.Path | None], dict]
    """With a folder for what the allocator did, or none."""
    choose: Callable[[list[str]], list[str]]
    """The cases that a command line names: all if it names none."""
    is_measurable: Callable[[str], bool] = lambda case: True
    """Can one GPU and a fake group run it?"""
    measured_before: Callable[[str], dict | None] = lambda case: None
    """What others measured, where this script did not."""
    heading: tuple[str, ...]
    footing: tuple[str, ...] = ()
    limit_s: float = 3600
    """Of a prediction."""
    measured_limit_s: float = 3600

    @property
    def predicted(self) -> pathlib.Path:
        return BENCHMARKS / "results" / f"{self.script.stem}.json"

    @property
    def measured(self) -> pathlib.Path:
        return BENCHMARKS / "truth" / f"{self.script.stem}.json"

    @property
    def table(self) -> pathlib.Path:
        return BENCHMARKS / "results" / f"{self.script.stem}.md"

    def command(self, mode: str, case: str, *more: str) -> list[str]:
        return [sys.executable, str(self.script), mode, "--one", case, *more]

    def keep(self, path: pathlib.Path, case: str, answer: dict) -> None:
        """Beside what is there of other cases, which another process may have written."""
        found = read(path) | {case: answer}
        path.write_text(json.dumps({case: found[case] for case in self.cases if case in found}, indent=1) + "\n")


def read(path: pathlib.Path) -> dict[str, dict]:
    return json.loads(path.read_text()) if path.exists() else {}


def answer_in(output: str, otherwise: str) -> dict:
    """What a process answered, or how it failed."""
    answers = [line for line in output.splitlines() if line.startswith(ANSWER)]
    if answers:
        return json.loads(answers[-1].removeprefix(ANSWER))
    said = otherwise.strip().splitlines() or ["no word"]
    return {"error": said[-1][:300], "details": "\n".join(said[-40:])}


def in_words(found: dict) -> str:
    if "error" in found:
        return found["error"]
    return f"{found['peak'] / MIB:,.1f} MiB allocated, {found['reserved'] / MIB:,.1f} MiB reserved {found.get('problem', '')}"


def write_trace(path: pathlib.Path) -> None:
    """What the allocator was asked for and did since its history began, a line each: action, address, size, stream."""
    import torch

    with gzip.open(path, "wt") as file:
        for event in torch.cuda.memory._snapshot()["device_traces"][0]:
            print(event["action"], event.get("addr", 0), event["size"], event["stream"], file=file)


def begin_trace() -> None:
    import torch

    torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)


def predicted_steps(build: Callable[[], Callable[[], None]], steps: int) -> dict:
    """What memfit says of the steps of a function that builds one, on one H200."""
    import memfit

    prediction = memfit.predict(build, gpu="H200", steps=steps, torch_version="2.11+cu130")
    return {
        "peaks": [step.peak_allocated for step in prediction.steps],
        "peak": prediction.peak_allocated,
        "reserved": prediction.peak_reserved,
        "assumptions": list(prediction.assumptions),
    }


def measured_steps(build: Callable[[], Callable[[], None]], steps: int, trace: pathlib.Path | None) -> dict:
    """What the GPU at hand does; what its allocator did goes to the file ``trace``."""
    import torch

    if trace is not None:
        begin_trace()
    torch.manual_seed(0)
    step, peaks = build(), []
    for _ in range(steps):
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    if trace is not None:
        write_trace(trace)
    return {"peaks": peaks, "peak": max(peaks), "reserved": torch.cuda.max_memory_reserved(), "torch": torch.__version__}


def predict_all(sides: Sides, cases: list[str], jobs: int) -> None:
    """One process a case; what is there of other cases is kept."""
    start = time.perf_counter()

    def in_fresh_process(case: str) -> dict:
        try:
            done = subprocess.run(sides.command("--predict", case), capture_output=True, text=True, timeout=sides.limit_s)
        except subprocess.TimeoutExpired:
            return {"error": f"no answer in {sides.limit_s:.0f} s"}
        return answer_in(done.stdout, done.stderr)

    with ThreadPoolExecutor(jobs) as pool:
        for case, answer in zip(cases, pool.map(in_fresh_process, cases), strict=True):
            print(f"{time.perf_counter() - start:6.1f} s  {case}: {in_words(answer)}", flush=True)
            sides.keep(sides.predicted, case, answer)


def measure_all(sides: Sides, cases: list[str], jobs: int, trace: pathlib.Path | None, stop_after_s: float) -> None:
    """As many side by side as fit on the GPU by their predictions, in the order in which they are named."""
    sizes = {case: said.get("reserved", 0) for case, said in read(sides.predicted).items()}
    start = time.perf_counter()
    waiting = [case for case in cases if sides.is_measurable(case) and sizes.get(case)]
    running: dict[str, subprocess.Popen] = {}
    begun: dict[str, float] = {}
    more = ["--trace", str(trace)] if trace is not None else []
    with tempfile.TemporaryDirectory() as scratch:
        while (waiting or running) and time.perf_counter() - start < stop_after_s:
            taken = sum(sizes[case] * SAFETY + CONTEXT for case in running)
            for case in list(waiting):
                needed = sizes[case] * SAFETY + CONTEXT
                if len(running) < jobs and (taken + needed < USABLE or not running):
                    taken += needed
                    waiting.remove(case)
                    with open(f"{scratch}/{case}", "w") as said:
                        command = sides.command("--measure", case, *more)
                        running[case] = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
                        begun[case] = time.perf_counter()
            time.sleep(0.2)
            for case, process in running.items():
                if time.perf_counter() - begun[case] > sides.measured_limit_s:
                    process.kill()
            for case in [case for case, process in running.items() if process.poll() is not None]:
                del running[case]
                output = pathlib.Path(scratch, case).read_text()
                answer = answer_in(output, output)
                print(f"{time.perf_counter() - start:6.1f} s  {case}: {in_words(answer)}", flush=True)
                sides.keep(sides.measured, case, answer)
        for case, process in running.items():
            print(f"stopped: {case}", pathlib.Path(scratch, case).read_text()[-500:])
            process.kill()
    if waiting:
        print(f"not begun: {', '.join(waiting)}")


def compare(sides: Sides) -> None:
    predicted, measured = read(sides.predicted), read(sides.measured)
    lines = [
        *sides.heading,
        "",
        "| row | rank | allocated | predicted | off | reserved | predicted | off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    offs: list[tuple[float, float]] = []
    for case in sides.cases:
        name, place = sides.place(case)
        said, true = predicted.get(case, {"error": "not predicted"}), measured.get(case, {"error": "not measured"})
        before = sides.measured_before(case)
        if "error" in true and before is not None:
            name, true = f"{name} *", before
        if "error" in said or "error" in true:
            figures = [
                f"{each['peak'] / MIB:,.1f}, {each['reserved'] / MIB:,.1f}" if "peak" in each else each["error"][:80]
                for each in (true, said)
            ]
            lines.append(f"| {name} | {place} | {figures[0]} | {figures[1]} | | | | |")
            continue
        off = (said["peak"] / true["peak"] - 1, said["reserved"] / true["reserved"] - 1)
        offs.append(off)
        lines.append(
            f"| {name} | {place} | {true['peak'] / MIB:,.1f} | {said['peak'] / MIB:,.1f} | {off[0]:+.2%} "
            f"| {true['reserved'] / MIB:,.1f} | {said['reserved'] / MIB:,.1f} | {off[1]:+.2%} |"
        )
    for index, what in enumerate(("allocated", "reserved")):
        sizes = [abs(off[index]) for off in offs]
        if sizes:
            lines += ["", f"{what}: {len(sizes)} rows, median {statistics.median(sizes):.2%}, worst {max(sizes):.2%}."]
    lines += sides.footing
    sides.table.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main(sides: Sides, what: str) -> None:
    """The command line of a script."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("rows", nargs="*", help="all if none")
    mode = parser.add_mutually_exclusive_group(required=True)
    for flag in ("--predict", "--measure", "--compare"):
        mode.add_argument(flag, action="store_true")
    parser.add_argument("--one", action="store_true", help="in this process, as JSON")
    parser.add_argument("--trace", type=pathlib.Path, metavar="FOLDER", help="with --measure: write what the allocator did")
    parser.add_argument("--jobs", type=int, help="processes at a time: 2 where it predicts, 6 where it measures")
    parser.add_argument("--stop-after", type=float, default=1800, metavar="S", help="with --measure: begin and wait no longer")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    if args.compare:
        compare(sides)
    elif args.one:
        case = args.rows[0]
        print(ANSWER + json.dumps(sides.predict(case) if args.predict else sides.measure(case, args.trace)))
    elif args.predict:
        predict_all(sides, sides.choose(args.rows), args.jobs or 2)
    else:
        measure_all(sides, sides.choose(args.rows), args.jobs or 6, args.trace, args.stop_after)
