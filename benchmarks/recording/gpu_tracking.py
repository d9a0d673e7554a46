"""Track the zoo on a real GPU with both witnesses: is the ledger's peak what CUDA says, do they agree, and what does each cost?

    python benchmarks/recording/gpu_tracking.py                       # all workloads, one fresh process each
    python benchmarks/recording/gpu_tracking.py llama_amp fsdp2_full  # some of them
    python benchmarks/recording/gpu_tracking.py --jobs 3              # three at once; whoever takes times has the GPU alone

Each process runs a workload bare, tracked from the allocator's history, and tracked with the dispatch mode. What a tracked step
costs is measured on the bare run's model when it has warmed up: in each of some rounds some bare steps, some that are tracked by
the allocator, some with its history on and nobody who reads it, and bare ones again. A slowdown is that of a round's median step
over the median of its bare ones, and of the rounds the median: machines become faster and slower by a third within seconds.

The peak of the allocator's ledger is compared with ``torch.cuda.max_memory_allocated()`` of the same run, byte by byte, and with
that of the bare run, without what a run before left (FSDP1 never frees a model that is not sharded); where a bare run differs from
itself, with the nearest of two. The operators' ledger has what was asked for, in units of 512 bytes; replayed through the allocator
it also has what CUDA gave on top by not splitting a cached block. cuBLAS's workspaces come from no operator, so the dispatch mode
cannot see them: they are measured by clearing them, and counted apart.

Where both witnesses' ledgers differ, by category and by module: at the peak of what operators show. Temporaries that a kernel takes
and gives back while it runs are in the allocator's ledger alone, and can move its own peak to another module; so both are looked at
where the operators' ledger has its peak: in the same step, phase and module, at the event at which they hold the same in total, or
most nearly so. The other moment is when the first backward of a step begins.

Results are merged into those of earlier calls, by name. A distributed workload is rank 0 of a fake world, DDP one rank of NCCL. The
parent must not touch CUDA: children are forked.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import fcntl
import gc
import hashlib
import json
import math
import multiprocessing
import multiprocessing.connection
import pathlib
import re
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any

import numpy as np
import torch

import memfit
from memfit.allocator import parse_alloc_conf, replay, requests_from_ledger
from memfit.analysis import find_peak, find_step_peaks
from memfit.analysis.owners import find_owners
from memfit.analysis.timeline import MemoryTimeline, events_on
from memfit.ledger import Category, Ledger, Phase
from memfit.ledger.columns import running_at, steps_at
from memfit.ledger.schema import Slack
from memfit.record.sources.allocator.joining import BEFORE
from memfit.torch_compat import memory_history

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.workloads import zoo

RESULTS = pathlib.Path(__file__).parents[1] / "results"
MIB = 2**20
MODULE_CALL, ENGINE_RUN = torch.nn.Module.__call__, torch.autograd._engine_run_backward
WARM_UP = 7
"""Steps before a recording is as cheap as it will be."""
ROUNDS, STEPS_A_ROUND = 4, 3
NCCL_LETS_GO_S = 0.4
"""DDP makes new buckets after its first step, and NCCL holds the old ones until its watchdog, which wakes ten times a second, sees
that their work is done. Without this wait the same bare run peaks at 9,621 or at 10,231 MiB, from one time to the next."""


def join_world(name: str) -> None:
    import torch.distributed as dist

    if name.startswith("ddp"):
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    sized = re.search(r"_w?(\d+)(?:_nockpt)?$", name)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=int(sized[1]) if sized else 8)


def forget() -> None:
    gc.collect()
    torch.cuda.empty_cache()


class Turns:
    """Processes that share a GPU: many may use it at once, or one that takes times."""

    def __init__(self, file: pathlib.Path) -> None:
        self._file = file.open("w")

    @contextlib.contextmanager
    def taken(self, *, alone: bool):
        fcntl.flock(self._file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        try:
            yield
            torch.cuda.synchronize()
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def seconds_of(step, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(lambda mark: None)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def alone(turns: Turns, step, count: int) -> list[float]:
    with turns.taken(alone=True):
        return seconds_of(step, count)


def in_rounds(run, turns: Turns) -> list[dict[str, list[float]]]:
    """Seconds of steps on a model that has warmed up: bare, tracked, with the history alone."""
    tracker = memfit.track(run.model, run.optimizer, witness="allocator")
    with turns.taken(alone=False), tracker:
        seconds_of(run.step, WARM_UP)  # it learns in the first steps, and costs more there
    rounds = []
    with turns.taken(alone=True):
        for _ in range(ROUNDS):
            found = {"bare": after_one(run.step)}
            with tracker:
                found["allocator"] = after_one(run.step)
            memory_history.begin(1_000_000, with_stacks=False)
            found["history"] = after_one(run.step)
            memory_history.end()
            found["bare"] += after_one(run.step)
            rounds.append(found)
    return rounds


def after_one(step) -> list[float]:
    return seconds_of(step, 1 + STEPS_A_ROUND)[1:]


def settle(name: str) -> None:
    """A step is over for everybody, NCCL included."""
    torch.cuda.synchronize()
    if name.startswith("ddp"):
        time.sleep(NCCL_LETS_GO_S)


def run_bare(name: str, turns: Turns, steps: int) -> tuple[dict, Any]:
    found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "peaks": []}
    with turns.taken(alone=False):
        torch.manual_seed(0)
        found["left_before"] = torch.cuda.memory_allocated()
        run = zoo.ZOO[name]("cuda")
        for _ in range(steps):
            torch.cuda.reset_peak_memory_stats()
            run.step(lambda mark: None)
            settle(name)
            found["peaks"].append(torch.cuda.max_memory_allocated())
        found |= {"digest": digest_of(run), "hooks": hooks_of(run)}
    return found, run


def clear_cublas() -> int:
    """The bytes of cuBLAS's workspaces, which are gone then."""
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    return before - torch.cuda.memory_allocated()


def digest_of(run) -> str:
    """Of every bit of the model's parameters."""
    total = hashlib.sha256()
    for parameter in run.model.parameters():
        local = parameter.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        total.update(local.contiguous().view(torch.uint8).flatten()[::997].cpu().numpy().tobytes())
        total.update(str(float(local.double().sum())).encode())
    return total.hexdigest()[:16]


def seen_by_both(ledger: Ledger) -> Ledger:
    """Without what the allocator gave on top by not splitting a block."""
    return dataclasses.replace(ledger, slack=Slack.from_rows([]))


def is_of_the_run(ledger: Ledger):
    """Per block: can an operator of this run have made it? Not so workspaces that libraries keep, and what a run before left."""
    before = ledger.strings.index(BEFORE) if BEFORE in ledger.strings else -1
    return (ledger.categories != Category.WORKSPACE) & (ledger.blocks.op != before)


def totals(ledger: Ledger) -> MemoryTimeline:
    """What operators of this run have in use on the GPU."""
    events = events_on(ledger, cuda_of(ledger))
    events = events[is_of_the_run(ledger)[ledger.events.subject[events]]]
    return MemoryTimeline.from_deltas(events, ledger.deltas[events])


def cuda_of(ledger: Ledger) -> int:
    return [device.name for device in ledger.devices].index("cuda:0")


def same_moment(ledger: Ledger, other: Ledger, event: int) -> int:
    """The event of ``ledger`` at which the same ran as at an event of ``other``, and about as much was in use."""
    timeline = totals(ledger)
    total = int(totals(other).at(np.array([event]))[0])
    events = timeline.events[1:]
    step, phases, modules = steps_at(ledger, events), *what_ran(ledger, events)
    asked = np.array([event])
    here = step == steps_at(other, asked)[0]
    phase, module = (found[0] for found in what_ran(other, asked))
    for closer in (phases == phase, modules == module):  # a module that one of them does not know: its phase is enough
        here = here & closer if (here & closer).any() else here
    events = events[here]
    return int(events[np.argmin(np.abs(timeline.at(events) - total))])


def what_ran(ledger: Ledger, events) -> tuple:
    """Per event: the phase and the path of the module."""
    scopes = running_at(ledger, events)
    paths = np.array([ledger.module_path(module) for module in range(len(ledger.modules))] + [""])
    return np.append(ledger.scopes.phase.astype(int), -1)[scopes], paths[np.append(ledger.scopes.module, -1)[scopes]]


def held_at(ledger: Ledger, event: int) -> dict:
    """By category and by module, as asked for."""
    held = ledger.block_bytes_at(event) * (ledger.blocks.device == cuda_of(ledger)) * is_of_the_run(ledger)
    found = {"category": collections.Counter(), "module": collections.Counter()}
    for owner, category, size in zip(find_owners(ledger).tolist(), ledger.categories.tolist(), held.tolist(), strict=True):
        if size:
            found["category"][Category(category).label] += size
            found["module"][ledger.module_path(owner)] += size
    return {
        "when": ledger.moment_at(event).label,
        "category": dict(found["category"]),
        "module": dict(found["module"].most_common(80)),
        "total": int(held.sum()),
    }


def backward_of(ledger: Ledger, step: int) -> int:
    """The event at which the first backward of a step begins."""
    backward = ledger.scope_enter[(ledger.scopes.phase == Phase.BACKWARD) & (ledger.scopes.module == -1)]
    return int(backward[backward > ledger.step_starts[step]][0])


def both_ledgers(seen: Ledger, shown: Ledger) -> dict:
    """What the allocator's ledger and the operators' say, at moments that both have."""
    seen, shown = seen_by_both(seen), seen_by_both(shown)
    timeline = totals(shown)
    peak = int(timeline.events[np.argmax(timeline.totals)])
    return {
        "the peak": {"allocator": held_at(seen, same_moment(seen, shown, peak)), "operators": held_at(shown, peak)},
        "backward": {"allocator": held_at(seen, backward_of(seen, 1)), "operators": held_at(shown, backward_of(shown, 1))},
    }


def run_tracked(name: str, turns: Turns, steps: int, timed_steps: int, witness: str) -> tuple[dict, Ledger]:
    with turns.taken(alone=False):
        torch.manual_seed(0)
        torch.cuda.reset_peak_memory_stats()
        left_before = torch.cuda.memory_allocated()
        tracker = memfit.track(witness=witness)
        tracker.__enter__()
        run = zoo.ZOO[name]("cuda")
        for _ in range(steps):
            run.step(lambda mark: None)
            settle(name)  # as in the bare run: NCCL lets go of buffers when their work is done
        digest = digest_of(run)
    seconds = alone(turns, run.step, timed_steps)
    with turns.taken(alone=False):
        counted = torch.cuda.max_memory_allocated()
        tracker.__exit__(None, None, None)
    closed = time.perf_counter()
    ledger = tracker.ledger.check()
    device = cuda_of(ledger)
    step_peaks = [peak.peak.size_bytes for peak in find_step_peaks(ledger, device) if peak.step >= 0]
    peak = find_peak(ledger, device)
    replayed = replay(requests_from_ledger(ledger, "cuda:0"), parse_alloc_conf("", torch.__version__))
    return {
        "counted": counted,
        "left_before": left_before,
        "peak": peak.size_bytes,
        "when": peak.label,
        "peaks": step_peaks[:steps],
        "seconds": seconds,
        "replayed": replayed.peak_allocated,
        "replayed_reserved": replayed.peak_reserved,
        "events": len(ledger.events),
        "steps": len(step_peaks),
        "problem": ledger.info.problem,
        "notes": ledger.info.notes,
        "breakdown": {category.label: size for category, size in peak.breakdown.items()},
        "digest": digest,
        "hooks": hooks_of(run),
        "work_out_s": time.perf_counter() - closed,
    }, ledger


def hooks_of(run) -> list[int]:
    """How many hooks the modules have, by kind, and whether the functions that a recording replaces are torch's own."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    is_own = (torch.nn.Module.__call__ is MODULE_CALL, torch.autograd._engine_run_backward is ENGINE_RUN)
    return [sum(len(getattr(module, kind)) for module in run.model.modules()) for kind in kinds] + [*map(int, is_own)]


def measure(name: str, pipe, lock: pathlib.Path) -> None:
    warnings.filterwarnings("ignore")
    try:
        turns = Turns(lock)
        if name.startswith(zoo.DISTRIBUTED):
            join_world(name)
        pipe.send(measure_big(name, turns) if name in zoo.BIG else measure_small(name, turns))
    except BaseException as error:
        pipe.send({"name": name, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]})


def measure_small(name: str, turns: Turns) -> dict:
    bare, run = run_bare(name, turns, WARM_UP)
    found = {"name": name, "bare": bare, "rounds": in_rounds(run, turns)}
    with turns.taken(alone=False):
        bare["cublas"] = clear_cublas()
        del run
        forget()
    found["allocator"], seen = run_tracked(name, turns, WARM_UP, 0, "allocator")
    forget()
    if found["allocator"]["digest"] != bare["digest"] or max(found["allocator"]["peaks"]) != max(bare["peaks"]):
        found["again"], _ = run_bare(name, turns, WARM_UP)
        forget()
    found["operators"], shown = run_tracked(name, turns, 3, 2, "operators")
    return found | {"both": both_ledgers(seen, shown)}


def measure_big(name: str, turns: Turns) -> dict:
    """A step takes many seconds: two of each kind, of which the second is timed."""
    bare, run = run_bare(name, turns, 1)
    found = {"name": name, "bare": bare}
    torch.cuda.reset_peak_memory_stats()
    seconds = alone(turns, run.step, 1)
    bare["peaks"].append(torch.cuda.max_memory_allocated())
    bare["cublas"] = clear_cublas()
    del run
    forget()
    found["allocator"], seen = run_tracked(name, turns, 1, 1, "allocator")
    forget()
    found["operators"], shown = run_tracked(name, turns, 1, 1, "operators")
    found["rounds"] = [{"bare": seconds, "allocator": found["allocator"]["seconds"]}]
    return found | {"both": both_ledgers(seen, shown)}


def in_fresh_processes(names: list[str], jobs: int, limit_s: float, until: float):
    """Measures each in a process of its own, several at once, and yields what each one says. After ``until``, none is begun."""
    waiting, running = list(names), {}
    with tempfile.TemporaryDirectory() as folder:
        lock = pathlib.Path(folder) / "turns"
        while running or (waiting and time.monotonic() < until):
            while waiting and len(running) < jobs and time.monotonic() < until:
                name = waiting.pop(0)
                receiver, sender = multiprocessing.Pipe(duplex=False)
                process = multiprocessing.get_context("fork").Process(target=measure, args=(name, sender, lock))
                process.start()
                sender.close()
                running[receiver] = name, process, time.monotonic() + limit_s
            ready = multiprocessing.connection.wait(list(running), timeout=1.0)
            for receiver, (name, process, limit) in list(running.items()):
                if receiver not in ready and time.monotonic() < limit:
                    continue
                try:
                    yield receiver.recv() if receiver in ready else {"name": name, "error": f"no answer in {limit_s:.0f} s"}
                except EOFError:
                    yield {"name": name, "error": f"process ended with code {process.exitcode}"}
                del running[receiver]
                process.kill()
                process.join()


def apart(row: dict, when: str, by: str) -> float:
    """The largest difference between what both witnesses say at one moment, as a share of all that was in use then."""
    seen, shown = row["both"][when]["allocator"], row["both"][when]["operators"]
    names = {*seen[by], *shown[by]}
    return max((abs(seen[by].get(name, 0) - shown[by].get(name, 0)) for name in names), default=0) / shown["total"]


def same_bits(row: dict) -> str:
    if row["bare"]["digest"] == row["allocator"]["digest"]:
        return "yes"
    return "a bare run differs from itself" if row.get("again", row["bare"])["digest"] != row["bare"]["digest"] else "no"


def slowdown(row: dict, kind: str) -> float | None:
    """How much longer a step takes; ``None`` where it was not measured."""
    if kind == "operators":
        bare = [second for found in row["rounds"] for second in found["bare"]]
        return statistics.median(row["operators"]["seconds"]) / statistics.median(bare)
    ratios = [statistics.median(found[kind]) / statistics.median(found["bare"]) for found in row["rounds"] if kind in found]
    return statistics.median(ratios) if ratios else None


def off_from_bare(row: dict) -> float:
    """From the peak of the bare run that is nearest: some differ from themselves."""
    truths = [max(run["peaks"]) - run.get("left_before", 0) for run in (row["bare"], row.get("again", row["bare"]))]
    peak = row["allocator"]["peak"] - row["allocator"].get("left_before", 0)
    return min((peak / truth - 1 for truth in truths), key=abs)


COLUMNS = (
    "workload",
    "max_memory_allocated, tracked",
    "the allocator's ledger",
    "off from the same run",
    "off from the bare run",
    "operators' ledger, replayed",
    "apart at the peak, by category",
    "by module",
    "apart when backward begins",
    "by module",
    "bare step",
    "slowdown, allocator",
    "of it, the history alone",
    "slowdown, operators",
    "the same bits",
    "a hook left",
)


def line_of(row: dict) -> str:
    if "error" in row:
        return f"| {row['name']} | {row['error'][:100]} |" + " |" * (len(COLUMNS) - 2)
    bare, seen, shown = row["bare"], row["allocator"], row["operators"]
    truth = max(bare["peaks"])
    cells = (
        row["name"],
        f"{seen['counted'] / MIB:,.1f} MiB",
        f"{seen['peak'] / MIB:,.1f} MiB",
        f"{seen['peak'] - seen['counted']:+,} B",
        f"{off_from_bare(row):+.3%}",
        f"{(shown['replayed'] + bare['cublas']) / truth - 1:+.3%}",
        *(f"{apart(row, when, by):.2%}" for when in ("the peak", "backward") for by in ("category", "module")),
        f"{statistics.median(second for found in row['rounds'] for second in found['bare']) * 1e3:.1f} ms",
        *("" if (ratio := slowdown(row, kind)) is None else f"{ratio:.2f}" for kind in ("allocator", "history", "operators")),
        same_bits(row),
        "no" if seen["hooks"] == bare["hooks"] else "yes",
    )
    return f"| {' | '.join(cells)} |"


def table(rows: list[dict]) -> list[str]:
    machine = next((f"{row['bare']['gpu']}, torch {row['bare']['torch']}" for row in rows if "bare" in row), "no GPU")
    lines = [
        f"{machine}; `python benchmarks/recording/gpu_tracking.py`. {len(rows)} of {len(zoo.ZOO)} workloads; slowdowns of a step.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *map(line_of, rows),
    ]
    ran = [row for row in rows if "error" not in row]
    if ran:
        lines += ["", summary(ran, len(rows))]
    return lines


def summary(rows: list[dict], num_tried: int) -> str:
    exact = sum(row["allocator"]["peak"] == row["allocator"]["counted"] for row in rows)
    offs = [abs(off_from_bare(row)) for row in rows]
    replayed = [abs((row["operators"]["replayed"] + row["bare"]["cublas"]) / max(row["bare"]["peaks"]) - 1) for row in rows]
    kinds = ("allocator", "history", "operators")
    costs = {kind: [ratio for row in rows if (ratio := slowdown(row, kind)) is not None] or [1.0] for kind in kinds}
    worst = {
        (when, by): max(apart(row, when, by) for row in rows) for when in ("the peak", "backward") for by in ("category", "module")
    }
    ratios = {name: f"{statistics.median(found):.2f} in the median, {max(found):.2f} at worst" for name, found in costs.items()}
    off, off_replayed = (
        f"{statistics.median(found):.3%} in the median and {max(found):.2%} at worst" for found in (offs, replayed)
    )
    return (
        f"{len(rows)} of {num_tried} workloads ran. The allocator's ledger has the peak that CUDA counted, to the byte, in "
        f"{exact} of {len(rows)}; from the bare run it is off by {off}. Slowdown: {ratios['allocator']}; with the allocator's "
        f"history alone, read by nobody: {ratios['history']}; with the operators' witness: {ratios['operators']}, its ledger "
        f"replayed off by {off_replayed}. Between both witnesses, categories are at most {worst['the peak', 'category']:.2%} apart "
        f"at the peak of what operators show, and modules {worst['the peak', 'module']:.2%}; when backward begins "
        f"{worst['backward', 'category']:.2%} and {worst['backward', 'module']:.2%}. Temporaries that kernels take while they run "
        "are in the allocator's ledger alone."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(zoo.ZOO))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at once; times are taken by one alone")
    parser.add_argument("--limit", type=float, default=400, help="seconds for a workload")
    parser.add_argument("--until", type=float, default=math.inf, help="after so many seconds, no workload is begun")
    parser.add_argument("--show", action="store_true", help="write the table again, from what was measured")
    args = parser.parse_args()
    file = args.out / "gpu_tracking.json"
    known = {row["name"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    known = {name: row for name, row in known.items() if "both" in row}
    start = time.monotonic()
    for found in in_fresh_processes([] if args.show else args.workloads, args.jobs, args.limit, start + args.until):
        known[found["name"]] = found
        print(f"{time.monotonic() - start:6.1f} s", line_of(found), found.get("traceback", ""), flush=True)
        rows = (json.dumps(known[name]) for name in zoo.ZOO if name in known)
        file.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    lines = table([known[name] for name in zoo.ZOO if name in known])
    (args.out / "gpu_tracking.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
