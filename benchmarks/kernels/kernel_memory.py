"""What single kernels take from CUDA's allocator: measured on a GPU, predicted without one, compared.

    python benchmarks/kernels/kernel_memory.py --measure           # on a GPU: writes truth/kernel_memory.json
    python benchmarks/kernels/kernel_memory.py                     # anywhere: predicts, and compares with truth and record
    python benchmarks/kernels/kernel_memory.py --record            # also writes results/kernel_memory.md and kernel_state.json
    python benchmarks/kernels/kernel_memory.py --show conv2d LSTM  # both event by event, for the cases whose names start like this

A case of ``kernel_cases.py`` runs twice: first calls take what is kept for good (cuBLAS's workspaces), the second call is the
one that counts. It is written as a list of numbers, in order: a size is an allocation, as asked; ``-k`` is the end of the k-th
one (from 1); 0 separates forward from backward. Ends of inputs are not written.

``results/kernel_state.json`` holds what is predicted of every case, and a test fails if any of it changes: after a change that is
meant to change figures, record them anew, and look at what got worse.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import pathlib
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "kernel_memory.json"
STATE = BENCHMARKS / "results" / "kernel_state.json"
RECORD = "python benchmarks/kernels/kernel_memory.py --record"
CLOSE = 0.01
Events = list[int]


def flat(result: Any) -> list[Any]:
    """The tensors of a result that a gradient can come from."""
    import torch
    from torch.utils._pytree import tree_leaves

    return [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]


def run_once(work: Any, mark: Any) -> None:
    """Forward, then the gradients of everything; ``mark`` is called before, between and after."""
    import torch

    mark()
    result = work.forward()
    mark()
    outs = flat(result) if work.leaves else []
    if outs:
        grads = [torch.ones_like(out) for out in outs]
        mark()
        found = torch.autograd.grad(outs, work.leaves, grads, allow_unused=True)
        mark()
        del found


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


class History:
    """The allocator's log, one part at a time."""

    def __init__(self) -> None:
        self.events: Events = []
        self._open: dict[int, int] = {}
        self._count = 0

    def restart(self) -> None:
        import torch

        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=100_000)

    def take(self) -> None:
        """What happened since the restart."""
        import torch

        for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
            if entry["action"] == "alloc":
                self._count += 1
                self._open[entry["addr"]] = self._count
                self.events.append(entry["size"])
            elif entry["action"] == "free_requested":
                number = self._open.pop(entry["addr"], None)
                if number is not None:
                    self.events.append(-number)


def measure_case(make: Any) -> dict[str, Any]:
    import torch

    work = make()
    found = {}
    for label in ("first", "events"):
        history, calls, peaks = History(), [], []

        def mark(history=history, calls=calls, peaks=peaks) -> None:
            torch.cuda.synchronize()
            if len(calls) % 2:
                history.take()
                peaks.append(torch.cuda.max_memory_allocated() - calls[-1])
                history.events.append(0)
            calls.append(torch.cuda.memory_allocated())
            torch.cuda.reset_peak_memory_stats()
            history.restart()

        run_once(work, mark)
        found[label], found["peaks"] = history.events[:-1], peaks
    if sorted(found["first"]) == sorted(found["events"]):
        del found["first"]
    return found


def measure(names: list[str]) -> None:
    """In this process: one line of JSON a case."""
    import torch

    from benchmarks.kernels.kernel_cases import CASES

    torch.manual_seed(0)
    square = torch.randn(64, 64, device="cuda", requires_grad=True)
    torch.nn.functional.linear(square, square, square[0]).sum().backward()  # cuBLAS settles
    del square
    for name in names:
        try:
            found = measure_case(CASES[name])
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"[:200]}
        print("RESULT " + json.dumps({"name": name, **found}), flush=True)
        gc.collect()
        torch.cuda.empty_cache()


def measure_all(names: list[str], jobs: int, limit_s: float) -> None:
    """In fresh processes, several at a time; what a process got done in the given time is kept."""
    import torch

    parts = [names[start : start + 100] for start in range(0, len(names), 100)]
    end = time.monotonic() + limit_s

    def in_fresh_process(part: list[str]) -> list[dict[str, Any]]:
        left = max(1.0, end - time.monotonic())
        command = [sys.executable, __file__, "--measure-here", *part]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=left)
            out, errors = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            out, errors = (late.stdout or b"").decode(), "out of time"
        rows = [json.loads(line.removeprefix("RESULT ")) for line in out.splitlines() if line.startswith("RESULT ")]
        print(f"{len(rows)} of {len(part)} cases, {end - time.monotonic():.0f} s left", errors[-300:], flush=True)
        return rows

    with ThreadPoolExecutor(jobs) as pool:
        found = {row.pop("name"): row for rows in pool.map(in_fresh_process, parts) for row in rows}
    before = json.loads(TRUTH.read_text())["cases"] if TRUTH.exists() else {}
    about = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "num_sms": torch.cuda.get_device_properties(0).multi_processor_count,
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row, separators=(',', ':'))}" for name, row in (before | found).items())
    TRUTH.write_text(f'{{"about": {json.dumps(about)},\n"cases": {{\n{lines}\n}}}}\n')
    failed = [f"{name}: {row['error']}" for name, row in found.items() if "error" in row]
    print(f"{len(found)} of {len(names)} cases measured, {len(failed)} of them refused", *failed, sep="\n")


# -- anywhere ------------------------------------------------------------------------------------------------------------------


def predict(names: list[str]) -> dict[str, dict[str, Any]]:
    """The same cases in the phantom world, with the same numbers. Convolutions are by rules alone, also where cuDNN is installed
    and could be asked: so what is recorded is the same everywhere."""
    from benchmarks.kernels.kernel_cases import CASES
    from memfit.job import PredictOptions
    from memfit.phantom.distributed.environment import RankInfo
    from memfit.phantom.kernels.convolution import library
    from memfit.predict.session import PhantomSession

    library._installed = lambda: None
    session = PhantomSession.prepare(PredictOptions(gpu="H200", torch_version="2.11+cu130"), RankInfo())
    session.recording.leave_steps_to_caller()
    marks: list[str] = []
    found: dict[str, dict[str, Any]] = {}

    def mark(name: str) -> None:
        marks.append(name)
        session.recording.mark_step()

    with session.running():
        for name in names:
            try:
                work = CASES[name]()
                run_once(work, lambda: mark(""))
                run_once(work, lambda name=name: mark(name))
            except Exception as error:
                found[name] = {"error": f"{type(error).__name__}: {error}".replace("\n", " ")[:200]}
    spans = events_by_mark(session.ledger(), marks)
    return {name: found.get(name) or {"events": spans[name]} for name in names}


def events_by_mark(ledger: Any, marks: list[str]) -> dict[str, Events]:
    """What happened between the first and the second mark of a name, and the third and the fourth."""
    from memfit.ledger.schema import EventKind

    found: dict[str, Events] = {}
    numbers: dict[int, int] = {}
    name, open_events = "", None
    on_gpu = [ledger.devices[device].name.startswith("cuda") for device in ledger.blocks.device]
    for kind, subject, size in zip(ledger.events.kind, ledger.events.subject, ledger.events.size, strict=True):
        if kind == EventKind.STEP:
            if marks[subject] != name:
                name, numbers, open_events = marks[subject], {}, None
            if open_events is None:
                open_events = found.setdefault(name, [])
                open_events += [0] * bool(numbers)
            else:
                open_events = None
        elif open_events is not None and kind == EventKind.ALLOC and size > 0 and on_gpu[subject]:
            numbers[subject] = len(numbers) + 1
            open_events.append(int(size))
        elif open_events is not None and kind == EventKind.FREE and subject in numbers:
            open_events.append(-numbers[subject])
    return found


def rounded(size: int) -> int:
    return -(-size // 512) * 512


def peaks_of(events: Events) -> list[int]:
    """The highest level of each part above its start, and what is left in the end."""
    sizes = [event for event in events if event > 0]
    level = base = peak = 0
    found = []
    for event in events:
        level += rounded(event) if event > 0 else -rounded(sizes[-event - 1]) if event < 0 else 0
        peak = max(peak, level)
        if event == 0:
            found.append(peak - base)
            base = peak = level
    return [*found, peak - base, level]


def course(events: Events) -> list[list[int]]:
    """Allocations as the allocator rounds them, each with the ends that come before the next one, sorted: in whatever order blocks
    are freed between two allocations, the allocator is left the same."""
    found: list[list[int]] = [[]]
    for event in events:
        if event < 0:
            found[-1].append(event)
        else:
            found.append([rounded(event)])
    return [sorted(each, reverse=True) for each in found]


def off_by(said: dict[str, Any], truth: dict[str, Any]) -> float:
    """How far off the worst of the peaks and of what is left is, as a share of it; of 64 KiB where it is less."""
    if "error" in said or "error" in truth:
        return 0.0 if "error" in said and "error" in truth else 9.0
    true, ours = peaks_of(truth["events"]), peaks_of(said["events"])
    return (
        max((abs(a - b) / max(b, 2**16) for a, b in zip(ours, true, strict=True)), default=0.0) if len(ours) == len(true) else 9.0
    )


# -- the recorded state --------------------------------------------------------------------------------------------------------


def state_of(said: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """What is predicted of a case, as it is recorded, and how many bytes that is above what was measured.

    ``peaks`` are those of forward and of backward, and what is left after them; ``events`` is a checksum of every single block.
    """
    if "error" in said:
        return {"error": said["error"].partition(":")[0]}
    peaks = peaks_of(said["events"])
    true = peaks_of(truth["events"]) if "events" in truth else []
    off = [ours - theirs for ours, theirs in zip(peaks, true, strict=True)] if len(peaks) == len(true) else None
    return {"peaks": peaks, "off": off, "events": hashlib.sha256(json.dumps(said["events"]).encode()).hexdigest()[:8]}


def changes(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A line for every case of which another figure is predicted than is recorded."""
    return [
        f"{name}: {verdict(recorded.get(name), state)}: recorded {recorded.get(name)}, now {state}"
        for name, state in now.items()
        if state != recorded.get(name)
    ]


def verdict(before: dict[str, Any] | None, after: dict[str, Any]) -> str:
    if before is None:
        return "is not recorded"
    was, now = before.get("off"), after.get("off")
    if was is None or now is None:
        return "changed"
    if was == now:
        return "has the same peaks, but other blocks"
    was_off, now_off = (max(map(abs, off)) for off in (was, now))
    return "got worse" if now_off > was_off else "got better" if now_off < was_off else "changed"


def read_state() -> dict[str, Any]:
    """Empty where nothing was recorded yet."""
    return json.loads(STATE.read_text()) if STATE.exists() else {"about": {}, "cases": {}}


def write_state(cases: dict[str, Any]) -> None:
    import torch

    about = {
        "what": "predicted peaks of forward and backward and what is left after them, in bytes; off: bytes above what was measured",
        "written_by": RECORD,
        "torch": minor_version(torch.__version__),
    }
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(state)}" for name, state in cases.items())
    STATE.write_text(f'{{"about": {json.dumps(about)},\n"cases": {{\n{lines}\n}}}}\n')


def minor_version(version: str) -> str:
    return ".".join(version.split(".")[:2])


def table(said: dict[str, Any], truth: dict[str, Any]) -> list[str]:
    """Families of cases: how many are exact, how many within one per cent, and what the others are off by."""
    families: dict[str, list[float]] = {}
    for name, ours in said.items():
        families.setdefault(name.split()[0], []).append(off_by(ours, truth[name]))
    rows = [
        f"| {family} | {len(offs)} | {sum(off == 0 for off in offs)} | {sum(0 < off < CLOSE for off in offs)} "
        f"| {', '.join(f'{100 * off:.0f}' for off in sorted(offs) if off >= CLOSE)} |"
        for family, offs in sorted(families.items())
    ]
    offs = [off for family in families.values() for off in family]
    return [
        "Peaks of forward and backward, and what is left after them, predicted without a GPU and measured on an H200 with torch",
        f"2.11.0+cu130: `{RECORD}`. Exact means to the byte, as CUDA's allocator counts: blocks are rounded",
        "up to 512 bytes. What is predicted of each case is in `kernel_state.json` beside this page.",
        "",
        "| cases | measured | exact | within 1 % | others, off by % |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"{sum(off == 0 for off in offs)} of {len(offs)} are exact, {sum(off < 1e-4 for off in offs)} within 0.01 %, "
        f"{sum(off < CLOSE for off in offs)} within 1 %.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="beginnings of their names; all if none")
    parser.add_argument("--measure", action="store_true", help="on a GPU")
    parser.add_argument("--measure-here", action="store_true", help="in this process, as lines of JSON")
    parser.add_argument("--record", action="store_true", help="write what is predicted of all cases into results/")
    parser.add_argument("--show", action="store_true", help="every event")
    parser.add_argument("--jobs", type=int, default=3, help="processes at a time")
    parser.add_argument("--limit-s", type=float, default=240, help="stop measuring after so many seconds")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    from benchmarks.kernels.kernel_cases import CASES

    names = [name for name in CASES if not args.cases or name.startswith(tuple(args.cases))]
    if args.record and args.cases:
        parser.error("--record writes the state of all cases: name none")
    if args.measure_here:
        measure(args.cases)
    elif args.measure:
        measure_all(names, args.jobs, args.limit_s)
    else:
        report(names, shows_all=args.show, records=args.record)


def report(names: list[str], shows_all: bool, records: bool) -> None:
    truth, said = json.loads(TRUTH.read_text())["cases"], predict(names)
    for name in names:
        off = off_by(said[name], truth[name])
        if shows_all or off >= CLOSE:
            print(f"{name}: off by {100 * off:.2f} %", f"  measured  {truth[name]}", f"  predicted {said[name]}", sep="\n")
    lines, states = table(said, truth), {name: state_of(said[name], truth[name]) for name in names}
    changed = changes(read_state()["cases"], states)
    print(*lines, "", f"{len(changed)} cases differ from what is recorded.", *changed, sep="\n")
    if records:
        (BENCHMARKS / "results" / "kernel_memory.md").write_text("\n".join(lines) + "\n")
        write_state(states)


if __name__ == "__main__":
    main()
