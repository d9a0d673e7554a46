"""Track the zoo on a real GPU: is the ledger's peak what CUDA says, and what does tracking cost?

    python benchmarks/gpu_tracking.py                       # all workloads, one fresh process each
    python benchmarks/gpu_tracking.py llama_amp fsdp2_full  # some of them

Each process runs a workload bare, then again under ``memfit.track``, and compares the peak of the ledger with
``torch.cuda.max_memory_allocated()`` of the bare run, and the seconds of a step. The ledger has what was asked for, in units of 512
bytes; replayed through the allocator it also has what CUDA gave on top by not splitting a cached block. Results are merged into
those of earlier calls, by name. cuBLAS's workspaces come from the same allocator
but from no operator, so a recorder cannot see them: they are measured by clearing them, and counted apart. A distributed workload
is rank 0 of a fake world, DDP one rank of NCCL. The parent must not touch CUDA: children are forked.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import pathlib
import re
import statistics
import sys
import time
import traceback
import warnings

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import zoo

import memfit
from memfit.allocator import parse_alloc_conf, replay, requests_from_ledger
from memfit.analysis import find_peak, find_step_peaks

RESULTS = pathlib.Path(__file__).parent / "results"
MIB = 2**20
NOTE = (
    "The DDP rows differ from themselves: DDP makes new buckets after the first step, and while NCCL still holds the work of that "
    "step, the old ones live on into the second. The same bare run peaks at 9,621 or at 10,231 MiB, from one time to the next."
)


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


def timed(step, count: int) -> float:
    seconds = []
    for _ in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(lambda mark: None)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def run_bare(name: str, steps: int, timed_steps: int) -> dict:
    torch.manual_seed(0)
    run = zoo.ZOO[name]("cuda")
    peaks = []
    for _ in range(steps):
        torch.cuda.reset_peak_memory_stats()
        run.step(lambda mark: None)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated())
    seconds = timed(run.step, timed_steps)
    before = torch.cuda.memory_allocated()
    torch._C._cuda_clearCublasWorkspaces()
    cublas = before - torch.cuda.memory_allocated()
    return {"gpu": torch.cuda.get_device_name(), "peaks": peaks, "seconds": seconds, "cublas": cublas}


def run_tracked(name: str, steps: int, timed_steps: int) -> dict:
    torch.manual_seed(0)
    with memfit.track() as tracker:
        run = zoo.ZOO[name]("cuda")
        for _ in range(steps):
            run.step(lambda mark: None)
            torch.cuda.synchronize()  # as in the bare run: NCCL lets go of buffers when their work is done
        seconds = timed(run.step, timed_steps)
    ledger = tracker.ledger.check()
    device = [d.name for d in ledger.devices].index("cuda:0")
    step_peaks = [peak.peak.size_bytes for peak in find_step_peaks(ledger, device) if peak.step >= 0]
    peak = find_peak(ledger, device)
    return {
        "peaks": step_peaks[:steps],
        "seconds": seconds,
        "replayed": replay(requests_from_ledger(ledger), parse_alloc_conf("", torch.__version__)).peak_allocated,
        "events": len(ledger.events),
        "problem": ledger.info.problem,
        "breakdown": {category.label: size for category, size in peak.breakdown.items()},
    }


def measure(name: str, pipe) -> None:
    warnings.filterwarnings("ignore")
    try:
        if name.startswith(zoo.DISTRIBUTED):
            join_world(name)
        steps, timed_steps = (2, 1) if name in zoo.BIG else (3, 3)
        bare = run_bare(name, steps, timed_steps)
        forget()
        pipe.send({"name": name, "bare": bare, "tracked": run_tracked(name, steps, timed_steps)})
    except BaseException as error:
        pipe.send({"name": name, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()[-3000:]})


def in_fresh_process(name: str, limit_s: float) -> dict:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=measure, args=(name, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(limit_s) else {"name": name, "error": f"no answer in {limit_s:.0f} s"}
    except EOFError:
        return {"name": name, "error": f"process ended with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def table(rows: list[dict]) -> list[str]:
    gpu = next((row["bare"]["gpu"] for row in rows if "bare" in row), "no GPU")
    lines = [
        f"{gpu}, torch {torch.__version__}; `python benchmarks/gpu_tracking.py`. cuBLAS's workspaces are added to both.",
        "",
        "| workload | max_memory_allocated | ledger | off | replayed | off | bare step | tracked step | slowdown |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    offs, replayed_offs, slowdowns = [], [], []
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['name']} | {row['error'][:100]} | | | | | | | |")
            continue
        bare, tracked = row["bare"], row["tracked"]
        cublas = bare["cublas"]
        truth, seen, replayed = max(bare["peaks"]), max(tracked["peaks"]) + cublas, tracked["replayed"] + cublas
        offs.append(abs(seen / truth - 1)), replayed_offs.append(abs(replayed / truth - 1))
        slowdowns.append(tracked["seconds"] / bare["seconds"])
        lines.append(
            f"| {row['name']} | {truth / MIB:,.1f} MiB | {seen / MIB:,.1f} MiB | {seen / truth - 1:+.2%} "
            f"| {replayed / MIB:,.1f} MiB | {replayed / truth - 1:+.3%} "
            f"| {bare['seconds'] * 1e3:.1f} ms | {tracked['seconds'] * 1e3:.1f} ms | {slowdowns[-1]:.2f} |"
        )
    if offs:
        lines += [
            "",
            f"{len(offs)} of {len(rows)} workloads ran. The ledger's peak is off by {statistics.median(offs):.2%} in the median "
            f"and {max(offs):.2%} at worst, replayed by {statistics.median(replayed_offs):.3%} and {max(replayed_offs):.2%}. "
            f"Slowdown {statistics.median(slowdowns):.2f} in the median, {max(slowdowns):.2f} at worst.",
            "",
            NOTE,
        ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(zoo.ZOO))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    file = args.out / "gpu_tracking.json"
    known = {row["name"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    start = time.time()
    for name in args.workloads:
        known[name] = in_fresh_process(name, limit_s=400)
        line = known[name] if "error" in known[name] else table([known[name]])[4]
        print(f"{time.time() - start:6.1f} s", line, flush=True)
        rows = [known[name] for name in zoo.ZOO if name in known]
        file.write_text(json.dumps(rows, indent=1) + "\n")
    (args.out / "gpu_tracking.md").write_text("\n".join(table(rows)) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
