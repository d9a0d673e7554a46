"""What `memfit run` costs for whole scripts, against running every call of them.

    python benchmarks/speed/whole_run_cost.py             # all, half an hour on two idle cores: results/whole_run_cost.json and .md
    python benchmarks/speed/whole_run_cost.py epoch       # some of them; the others stay as they are

Each is a process of its own, as a user would start it. Wall time counts on an idle machine; processor time, of the process and all
that it started, says more on a busy one, and the seconds of a loop of Python that does the same every time say how busy it was.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

BENCHMARKS = pathlib.Path(__file__).parents[1]
SCRIPTS = BENCHMARKS / "workloads" / "whole"
JSON, TABLE = (BENCHMARKS / "results" / f"whole_run_cost.{kind}" for kind in ("json", "md"))

TORCHRUN = ("torchrun", "--nproc-per-node", "8")
RUNS: dict[str, tuple[tuple[str, ...], bool]] = {
    "varlen": (("varlen.py",), False),
    "trainer_eval": (("trainer_eval.py",), False),
    "three": (("--steps", "3", "constant.py"), False),
    "thousand": (("constant.py",), False),
    "constant_50": (("--steps", "50", "constant.py"), False),
    "constant_150": (("--steps", "150", "constant.py"), False),
    "constant_50_all": (("--steps", "50", "constant.py"), True),
    "constant_150_all": (("--steps", "150", "constant.py"), True),
    "varlen_50": (("--steps", "50", "varlen.py"), False),
    "varlen_50_all": (("--steps", "50", "varlen.py"), True),
    "varlen_all": (("varlen.py",), True),
    "epoch": (("--max-seconds", "0", *TORCHRUN, "llama3_8b_epoch.py"), False),
}
"""The words after `memfit run --gpu H200 --json`, and whether every call is run."""


def pace() -> float:
    """Processor seconds of a loop that is always the same: more of them mean a machine that is shared."""
    start, total = time.process_time(), 0
    for number in range(5_000_000):
        total += number & 3
    return time.process_time() - start


def measure(name: str) -> dict:
    words, runs_all = RUNS[name]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "MEMFIT_RUN_ALL_CALLS": str(int(runs_all)), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        answer = pathlib.Path(folder, "answer.json")
        command = [
            sys.executable,
            "-m",
            "memfit",
            "run",
            "--gpu",
            "H200",
            "--json",
            "--out",
            str(pathlib.Path(folder, "run.memfit")),
        ]
        start = time.monotonic()
        files = [
            (os.POSIX_SPAWN_OPEN, 1, str(answer), os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        here = os.getcwd()
        os.chdir(SCRIPTS)
        process = os.posix_spawn(sys.executable, [*command, *words], environment, file_actions=files)
        os.chdir(here)
        _, status, used = os.wait4(process, 0)
        wall = time.monotonic() - start
        if status:
            return {"error": os.waitstatus_to_exitcode(status)}
        said = json.loads(answer.read_text())
    return {
        "wall_seconds": round(wall, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "pace": round(pace(), 2),
        "peak": said["peak_allocated"],
        "reserved": said["peak_reserved"],
        "steps": said["covered"]["training_steps"],
        "is_whole": said["covered"]["is_whole"],
    }


def times_less(found: dict, few: str, many: str, kind: str) -> float | None:
    """By how much the steps after the first 50 cost less than with every call run."""
    names = (few, many, f"{few}_all", f"{many}_all")
    if not all("error" not in found.get(name, {"error": 1}) for name in names):
        return None
    fast, slow = (found[end][kind] - found[begin][kind] for begin, end in (names[:2], names[2:]))
    return slow / max(fast, 0.1)


def table(found: dict) -> str:
    lines = [
        "# What whole scripts cost",
        "",
        "`memfit run --gpu H200` in seconds; made by `python benchmarks/speed/whole_run_cost.py`. *pace* is a loop of Python that",
        "does the same every time: where it is higher, the machine was shared. Names with *all*: every call is run.",
        "",
        "| run | wall | processor | pace | steps | to its end |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name in RUNS:
        row = found.get(name)
        if row is None or "error" in row:
            continue
        end = "yes" if row["is_whole"] else "no"
        lines.append(f"| {name} | {row['wall_seconds']} | {row['cpu_seconds']} | {row['pace']} | {row['steps']} | {end} |")
    lines.append("")
    for few, many, what in (("constant_50", "constant_150", "constant shape"), ("varlen_50", "varlen", "many lengths")):
        less = [times_less(found, few, many, kind) for kind in ("wall_seconds", "cpu_seconds")]
        if None not in less:
            lines.append(f"From step 50 on, {what}: {less[0]:.1f} times less wall time, {less[1]:.1f} times less processor time.")
    if all("error" not in found.get(name, {"error": 1}) for name in ("three", "thousand")):
        more = [found["thousand"][kind] - found["three"][kind] for kind in ("wall_seconds", "cpu_seconds")]
        lines.append(
            f"A thousand steps of constant shape: {more[0]:.1f} s of wall time more than three, {more[1]:.1f} of processor time."
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}; all by default")
    chosen = parser.parse_args().runs or list(RUNS)
    found = json.loads(JSON.read_text()) if JSON.exists() else {}
    for name in chosen:
        found[name] = measure(name)
        print(name, found[name], flush=True)
        JSON.write_text(json.dumps(found, indent=1) + "\n")
        TABLE.write_text(table(found))


if __name__ == "__main__":
    main()
