"""Long and odd runs on a real GPU, recorded from the allocator's history.

    python benchmarks/recording/gpu_watch.py --steps 200000  # a small model: is the end as fast as the beginning, is memory flat?
    python benchmarks/recording/gpu_watch.py --kills 50      # processes that are killed: is everything up to the last step there?
    python benchmarks/recording/gpu_watch.py --odd           # runs that a dispatch mode changes: the same bits, tracked and not
    python benchmarks/recording/gpu_watch.py --oom           # memory runs out: does the ledger have the request and what was live?
    python benchmarks/recording/gpu_watch.py --leaks         # seven leaks that people write: is each one named?

Each part is written to ``gpu_watch.json`` by itself, and the others are left as they are; kills as they come.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests"))
from helpers.leaks import LEAKS, Training, watch

import memfit
from memfit.analysis import find_peak
from memfit.ledger import Ledger
from memfit.record.sources.allocator.retention import Retention
from memfit.torch_compat import memory_history

RESULTS = pathlib.Path(__file__).parents[1] / "results"
MIB = 2**20
MODULE_CALL, ENGINE_RUN = nn.Module.__call__, torch.autograd._engine_run_backward


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(4)))
        self.head = nn.Linear(256, 16)

    def forward(self, x):
        return self.head(self.layers(x))


def small_training(device: str):
    torch.manual_seed(0)
    model = Small().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x, y = torch.randn(128, 256, device=device), torch.randint(0, 16, (128,), device=device)

    def step():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def resident_bytes() -> int:
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tiny_training(device: str):
    """So little work on the GPU that nothing hides what the host does."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(32, 64, device=device), torch.randint(0, 16, (32,), device=device)

    def step():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def run_long(steps: int, device: str, within_s: float) -> dict:
    """Many steps of a tiny model; every hundredth part is timed, by the clock and by the host's work, and memory looked at."""
    start, step = time.perf_counter(), tiny_training(device)
    _seconds_of(step, 200)
    bare = _seconds_of(step, 2000)
    part, parts, resident = max(1, steps // 100), [], []
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "run.memfit"
        largest = 0
        with memfit.track(save_to=file, retention=Retention()):
            step = tiny_training(device)
            while len(parts) < 100 and time.perf_counter() - start < within_s:
                parts.append(_seconds_of(step, part))
                resident.append(resident_bytes())
                largest = max(largest, file.stat().st_size)
        ledger = Ledger.load(file).check()
        size = file.stat().st_size
    bare_after = _seconds_of(tiny_training(device), 2000)
    walls, hosts = ([round(value * 1e6, 1) for value in column] for column in zip(*parts, strict=True))
    return {
        "steps": part * len(parts),
        "bare_us": round(statistics.mean((bare[0], bare_after[0])) * 1e6, 1),
        "first_us": statistics.median(walls[:10]),
        "last_us": statistics.median(walls[-10:]),
        "first_host_us": statistics.median(hosts[:10]),
        "last_host_us": statistics.median(hosts[-10:]),
        "all_us": walls,
        "all_host_us": hosts,
        "resident_after_a_tenth": resident[len(resident) // 10],
        "resident_at_the_end": resident[-1],
        "largest_journal": largest,
        "file": size,
        "level_rows": len(ledger.levels),
        "last_step": int(ledger.levels.last_step.max()),
        "num_steps_in_full": len(ledger.step_numbers),
        "problem": ledger.info.problem,
        "alarms": ledger.info.alarms,
        "notes": ledger.info.notes,
    }


def _seconds_of(step, count: int) -> tuple[float, float]:
    """Of a step: on the clock, and of the process."""
    _synchronize()
    start, start_host = time.perf_counter(), time.process_time()
    for _ in range(count):
        step()
    _synchronize()
    return (time.perf_counter() - start) / count, (time.process_time() - start_host) / count


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# -- killed --------------------------------------------------------------------------------------------------------------------


def run_until_killed(file: str, device: str) -> None:
    with memfit.track(save_to=file, retention=Retention(every=50)) as tracker:
        step = small_training(device)
        for number in range(10**9):
            step()
            if number % 10 == 0:
                print(number, tracker.num_steps_on_disk, flush=True)


def run_kills(times: int, device: str, at_once: int, within_s: float) -> Iterator[dict]:
    """Processes that are killed at some moment: what they said was on disk is on disk. Yields what is known after each few."""
    rng, begin, kept, lost, ended = random.Random(0), time.monotonic(), [], [], []
    with tempfile.TemporaryDirectory() as folder:
        waiting = [pathlib.Path(folder) / f"run{number}.memfit" for number in range(times)]
        while waiting and time.monotonic() - begin < within_s:
            batch, waiting = waiting[:at_once], waiting[at_once:]
            started = [_start(file, device) for file in batch]
            for process, file in zip(started, batch, strict=True):
                said_on_disk = _kill_after(process, rng.randrange(50, 1500))
                if process.wait() != -signal.SIGKILL:
                    ended.append({"code": process.returncode, "said": process.stderr.read()[-3000:]})
                if not file.exists():  # it ended before it began
                    continue
                ledger = Ledger.load(file).check()
                found = int(ledger.levels.last_step.max(initial=-1))
                kept.append(found)
                if found < said_on_disk:
                    lost.append((str(file), said_on_disk, found))
            killed = times - len(waiting) - len(ended)
            yield {"killed": killed, "ended_by_themselves": ended, "steps_on_disk": kept, "lost": lost}


def _start(file: pathlib.Path, device: str) -> subprocess.Popen:
    command = [sys.executable, "-X", "faulthandler", __file__, "--until-killed", file, "--device", device]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _kill_after(process: subprocess.Popen, least: int) -> int:
    """Kills a process after so many steps, and gives the number of steps that it had said were on disk."""
    number = said_on_disk = 0
    while number < least and (line := process.stdout.readline()):
        number, said_on_disk = map(int, line.split())
    process.send_signal(signal.SIGKILL)
    for line in process.stdout.read().splitlines(keepends=True):
        if line.endswith("\n"):  # the last line may be cut
            said_on_disk = int(line.split()[1])
    return said_on_disk


# -- odd runs ------------------------------------------------------------------------------------------------------------------


def per_sample_gradients(device):
    net, x = nn.Linear(64, 64).to(device), torch.randn(32, 64, device=device)
    weights = {name: value.detach() for name, value in net.named_parameters()}

    def loss(weights, sample):
        return torch.func.functional_call(net, weights, (sample[None],)).pow(2).sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)
    return list(found.values())


def ctc(device):
    net = nn.Linear(32, 20).to(device)
    scores = net(torch.randn(50, 16, 32, device=device)).log_softmax(2)
    targets = torch.randint(1, 20, (16, 30), device=device)
    F.ctc_loss(scores, targets, torch.full((16,), 50), torch.full((16,), 30)).backward()
    return [net.weight.grad]


def sparse(device):
    net = nn.EmbeddingBag(1000, 64, sparse=True, mode="sum").to(device)
    optimizer = torch.optim.SparseAdam(net.parameters())
    for _ in range(3):
        net(torch.randint(0, 1000, (16, 8), device=device)).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [net.weight]


def jagged(device):
    net = nn.Linear(32, 32).to(device)
    nested = torch.nested.nested_tensor([torch.randn(n, 32, device=device) for n in (3, 7, 5)], layout=torch.jagged)
    net(nested).values().pow(2).sum().backward()
    return [net.weight.grad]


def compiled(device):
    net = Small().to(device)
    fast = torch.compile(net, fullgraph=True)
    for _ in range(3):
        fast(torch.randn(64, 256, device=device)).pow(2).sum().backward()
    return [parameter.grad for parameter in net.parameters()]


ODD = {run.__name__: run for run in (per_sample_gradients, ctc, sparse, jagged, compiled)}


def run_odd(device: str) -> dict:
    found = {}
    for name, run in ODD.items():
        results, facts = [], {}
        for tracked in (False, True):
            torch.manual_seed(0)
            torch._dynamo.reset()
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            if tracked:
                with memfit.track() as tracker:
                    results.append(run(device))
                    facts = {"counted": torch.cuda.max_memory_allocated() if device == "cuda" else 0}
                ledger = tracker.ledger.check()
                peak = find_peak(ledger, ledger.main_device).size_bytes if ledger.main_device is not None else 0
                facts |= {"peak": peak, "problem": ledger.info.problem, "witness": ledger.info.witness}
            else:
                results.append(run(device))
        same = all(torch.equal(one, other) for one, other in zip(*results, strict=True))
        is_left = nn.Module.__call__ is not MODULE_CALL or torch.autograd._engine_run_backward is not ENGINE_RUN
        found[name] = facts | {"same_bits": same, "hook_left": is_left or memory_history.is_kept_by_somebody()}
    return found


def run_leaks(device: str) -> dict:
    """What is said of each; and of the same training without a leak, nothing."""
    found = {}
    for kind, (training, where) in LEAKS.items():
        ledger, _ = watch(training, lambda: memfit.track(retention=Retention()), device)
        found[kind] = {"named": any(where in alarm for alarm in ledger.info.alarms), "alarms": ledger.info.alarms}
    ledger, _ = watch(Training, lambda: memfit.track(retention=Retention()), device)
    return found | {"none": {"named": bool(ledger.info.alarms), "alarms": ledger.info.alarms}}


def run_oom(device: str) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "oom.memfit"
        torch.cuda.set_per_process_memory_fraction(0.05)
        try:
            with memfit.track(on_oom=file):
                net = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(8))).to(device)
                x = torch.randn(4096, 4096, device=device)
                for _ in range(1000):
                    x = torch.cat((net(x), x))
        except torch.OutOfMemoryError as error:
            message = str(error)
        ledger = Ledger.load(file).check()
        said = subprocess.run([sys.executable, "-m", "memfit", "explain", file], capture_output=True, text=True)
        live = find_peak(ledger, 0)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return {
        "message": message,
        "failure": ledger.info.failure.__dict__,
        "when": ledger.moment_at(len(ledger.events) - 1).label,
        "peak": live.size_bytes,
        "breakdown": {category.label: size for category, size in live.breakdown.items()},
        "explain": said.stdout[:3000] + said.stderr[-1000:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--within", type=float, default=math.inf, help="after so many seconds, what is long ends where it is")
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=10, help="so many processes that are killed run at once")
    parser.add_argument("--odd", action="store_true")
    parser.add_argument("--oom", action="store_true")
    parser.add_argument("--leaks", action="store_true")
    parser.add_argument("--until-killed")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    args = parser.parse_args()
    if args.until_killed:
        run_until_killed(args.until_killed, args.device)
    parts = {
        "odd": lambda: run_odd(args.device) if args.odd else None,
        "oom": lambda: run_oom(args.device) if args.oom else None,
        "leaks": lambda: run_leaks(args.device) if args.leaks else None,
        "long": lambda: run_long(args.steps, args.device, args.within) if args.steps else None,
    }
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__} if args.device == "cuda" else {}
    file = args.out / "gpu_watch.json"
    for name, run in parts.items():
        result = run()
        if result is not None:
            write_part(file, machine | {name: result})
            print(json.dumps({name: result}, indent=1)[:4000], flush=True)
    for result in run_kills(args.kills, args.device, args.at_once, args.within):
        write_part(file, machine | {"kills": result})
        print(result, flush=True)


def write_part(file: pathlib.Path, part: dict) -> None:
    """Adds to the file; several parts may be measured at once."""
    with (file.parent / ".gpu_watch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(found | part, indent=1) + "\n")
    (file.parent / ".gpu_watch.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
