"""Track the zoo on a real GPU with both witnesses: is the ledger's peak what CUDA says, do they agree, and what does each cost?

    python benchmarks/gpu_tracking.py                       # all workloads, one fresh process each
    python benchmarks/gpu_tracking.py llama_amp fsdp2_full  # some of them

Each process runs a workload bare, then tracked from the allocator's history, then tracked with the dispatch mode, then bare again;
seconds are the median of some steps, those of both bare runs together. The peak of the allocator's ledger is compared with
``torch.cuda.max_memory_allocated()`` of the same run, byte by byte, and with that of the bare run. The operators' ledger has what
was asked for, in units of 512 bytes; replayed through the allocator it also has what CUDA gave on top by not splitting a cached
block. cuBLAS's workspaces come from no operator, so the dispatch mode cannot see them: they are measured by clearing them, and
counted apart. Where both witnesses' ledgers differ: by category at the peak of the one, and by module. Results are merged into
those of earlier calls, by name. A distributed workload is rank 0 of a fake world, DDP one rank of NCCL. The parent must not touch
CUDA: children are forked.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import gc
import hashlib
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
from memfit.analysis.owners import find_owners
from memfit.analysis.timeline import block_bytes_at
from memfit.ledger import Category, Phase
from memfit.ledger.schema import Slack

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


def timed(step, count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(lambda mark: None)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


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
    digest = digest_of(run)
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    return machine | {"peaks": peaks, "seconds": seconds, "cublas": cublas, "digest": digest}


def digest_of(run) -> str:
    """Of every bit of the model's parameters."""
    total = hashlib.sha256()
    for parameter in run.model.parameters():
        local = parameter.detach()
        local = local.to_local() if hasattr(local, "to_local") else local
        total.update(local.contiguous().view(torch.uint8).flatten()[::997].cpu().numpy().tobytes())
        total.update(str(float(local.double().sum())).encode())
    return total.hexdigest()[:16]


def what_both_see(ledger, device: int, step: int | None) -> dict:
    """By category and by module, as asked for: at the peak, or when the first backward of a step begins.

    Left out is what no operator shows: libraries' workspaces, and what the allocator gave on top by not splitting a block.
    """
    ledger = dataclasses.replace(ledger, slack=Slack.from_rows([]))
    event = find_peak(ledger, device).event
    if step is not None:
        backward = (ledger.scopes.phase == Phase.BACKWARD) & (ledger.scopes.module == -1)
        event = int(ledger.scope_enter[backward][ledger.scope_enter[backward] > ledger.step_starts[step]][0])
    held = block_bytes_at(ledger, event) * (ledger.blocks.device == device) * (ledger.categories != Category.WORKSPACE)
    found = {"category": collections.Counter(), "module": collections.Counter()}
    for owner, category, size in zip(find_owners(ledger).tolist(), ledger.categories.tolist(), held.tolist(), strict=True):
        if size:
            found["category"][Category(category).label] += size
            found["module"][ledger.module_path(owner)] += size
    return {"category": dict(found["category"]), "module": dict(found["module"].most_common(80)), "total": int(held.sum())}


def run_tracked(name: str, steps: int, timed_steps: int, witness: str) -> dict:
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    with memfit.track(witness=witness) as tracker:
        run = zoo.ZOO[name]("cuda")
        for _ in range(steps):
            run.step(lambda mark: None)
            torch.cuda.synchronize()  # as in the bare run: NCCL lets go of buffers when their work is done
        seconds = timed(run.step, timed_steps)
        counted = torch.cuda.max_memory_allocated()
    digest, closed = digest_of(run), time.perf_counter()
    ledger = tracker.ledger.check()
    device = [d.name for d in ledger.devices].index("cuda:0")
    step_peaks = [peak.peak.size_bytes for peak in find_step_peaks(ledger, device) if peak.step >= 0]
    peak = find_peak(ledger, device)
    replayed = replay(requests_from_ledger(ledger, "cuda:0"), parse_alloc_conf("", torch.__version__))
    return {
        "counted": counted,
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
        "both_see": {"the peak": what_both_see(ledger, device, None), "backward": what_both_see(ledger, device, 1)},
        "digest": digest,
        "work_out_s": time.perf_counter() - closed,
    }


def measure(name: str, pipe) -> None:
    warnings.filterwarnings("ignore")
    try:
        if name.startswith(zoo.DISTRIBUTED):
            join_world(name)
        # The allocator's witness learns in the first steps, and costs more there.
        steps, timed_steps, operators_steps = (2, 1, 1) if name in zoo.BIG else (7, 5, 2)
        found = {"name": name, "bare": run_bare(name, steps, timed_steps)}
        forget()
        found["allocator"] = run_tracked(name, steps, timed_steps, "allocator")
        forget()
        again = run_bare(name, steps, timed_steps)
        found["bare"]["seconds"] += again["seconds"]
        found["repeats"] = again["digest"] == found["bare"]["digest"]
        forget()
        found["operators"] = run_tracked(name, min(steps, 3), operators_steps, "operators")
        pipe.send(found)
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


def apart(row: dict, when: str, by: str) -> float:
    """The largest difference between what both witnesses say at one moment, as a share of all that was in use then."""
    seen, shown = row["allocator"]["both_see"][when], row["operators"]["both_see"][when]
    names = {*seen[by], *shown[by]}
    return max((abs(seen[by].get(name, 0) - shown[by].get(name, 0)) for name in names), default=0) / shown["total"]


def table(rows: list[dict]) -> list[str]:
    machine = next((f"{row['bare']['gpu']}, torch {row['bare']['torch']}" for row in rows if "bare" in row), "no GPU")
    lines = [
        f"{machine}; `python benchmarks/gpu_tracking.py`. {len(rows)} of {len(zoo.ZOO)} workloads; slowdowns are those of a step.",
        "",
        "| workload | max_memory_allocated, tracked | the allocator's ledger | off from the same run | off from the bare run "
        "| operators' ledger, replayed | apart at the peak, by category | by module | apart when backward begins | by module "
        "| bare step | slowdown, allocator | slowdown, operators | the same bits |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    exact, offs, replayed_offs, categories, modules = [], [], [], [], []
    slowdowns: dict[str, list[float]] = {"allocator": [], "operators": []}
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['name']} | {row['error'][:100]} |" + " |" * 12)
            continue
        bare, seen, shown = row["bare"], row["allocator"], row["operators"]
        step = statistics.median(bare["seconds"])
        truth, replayed = max(bare["peaks"]), shown["replayed"] + bare["cublas"]
        exact.append(seen["peak"] == seen["counted"])
        offs.append(abs(seen["peak"] / truth - 1))
        replayed_offs.append(abs(replayed / truth - 1))
        at_peak = apart(row, "the peak", "category"), apart(row, "the peak", "module")
        categories.append(apart(row, "backward", "category"))
        modules.append(apart(row, "backward", "module"))
        same = "yes" if bare["digest"] == seen["digest"] else "no" if row["repeats"] else "a bare run differs from itself"
        for witness, found in slowdowns.items():
            found.append(statistics.median(row[witness]["seconds"]) / step)
        lines.append(
            f"| {row['name']} | {seen['counted'] / MIB:,.1f} MiB | {seen['peak'] / MIB:,.1f} MiB "
            f"| {seen['peak'] - seen['counted']:+,} B | {seen['peak'] / truth - 1:+.3%} | {replayed / truth - 1:+.3%} "
            f"| {at_peak[0]:.2%} | {at_peak[1]:.2%} | {categories[-1]:.2%} | {modules[-1]:.2%} | {step * 1e3:.1f} ms "
            f"| {slowdowns['allocator'][-1]:.2f} | {slowdowns['operators'][-1]:.2f} | {same} |"
        )
    if offs:
        seen, shown = slowdowns["allocator"], slowdowns["operators"]
        lines += [
            "",
            f"{len(offs)} of {len(rows)} workloads ran. The allocator's ledger has the peak that CUDA counted, to the byte, in "
            f"{sum(exact)} of {len(exact)}; from the bare run it is off by {statistics.median(offs):.3%} in the median and "
            f"{max(offs):.2%} at worst. Slowdown {statistics.median(seen):.2f} in the median, {max(seen):.2f} at worst; of the "
            f"operators' {statistics.median(shown):.2f} and {max(shown):.2f}, their ledger replayed off by "
            f"{statistics.median(replayed_offs):.3%} and {max(replayed_offs):.2%}. Between both, categories are "
            f"at most {max(categories):.2%} apart and modules {max(modules):.2%} when backward begins; at the peak, they "
            "also differ by the temporaries of kernels, which no operator shows, and which may move the peak itself.",
            "",
            NOTE,
        ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=list(zoo.ZOO))
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--show", action="store_true", help="write the table again, from what was measured")
    args = parser.parse_args()
    file = args.out / "gpu_tracking.json"
    known = {row["name"]: row for row in json.loads(file.read_text())} if file.exists() else {}
    known = {name: row for name, row in known.items() if "error" in row or "allocator" in row}
    rows = [known[name] for name in zoo.ZOO if name in known]
    start = time.time()
    for name in () if args.show else args.workloads:
        known[name] = in_fresh_process(name, limit_s=400)
        line = known[name] if "error" in known[name] else table([known[name]])[4]
        print(f"{time.time() - start:6.1f} s", line, flush=True)
        rows = [known[name] for name in zoo.ZOO if name in known]
        file.write_text(json.dumps(rows, indent=1) + "\n")
    (args.out / "gpu_tracking.md").write_text("\n".join(table(rows)) + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
