"""What a prediction costs, side by side in one run, on the host.

    python benchmarks/prediction_speed.py

One training step of the same Llama with 480 modules and more: under bare ``FakeTensorMode``, under PyTorch's ``MemTracker`` on fake
host tensors, and predicted. Then Llama-3 405B on 512 GPUs, three steps, with the memory of the process. Writes
``results/prediction_speed.md``.
"""

from __future__ import annotations

import pathlib
import resource
import statistics
import subprocess
import sys
import time
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import memfit

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import zoo  # noqa: E402

LAYERS = (16, 60)
"""A block has eight modules: 60 blocks are 480 of them, and three more."""
STEPS = 3


def workload(layers: int, device: str):
    args = zoo.LlamaArgs(dim=512, layers=layers, heads=8, kv_heads=8, hidden=1408, seq=512)
    return zoo.single(args, batch=1, foreach=True)(device)


def times_of(step, count: int = STEPS) -> float:
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def bare(layers: int) -> float:
    with FakeTensorMode():
        run = workload(layers, "cpu")
        return times_of(lambda: run.step(lambda mark: None))


def torch_tracker(layers: int) -> float:
    with FakeTensorMode():
        run = workload(layers, "cpu")
        tracker = MemTracker()
        tracker.track_external(run.model, run.optimizer)

        def step():
            run.step(lambda mark: None)
            tracker.reset_mod_stats()

        with tracker:
            return times_of(step, count=1)  # it takes minutes


def predicted(layers: int) -> float:
    seconds = []

    def build():
        run = workload(layers, "cuda")

        def step():
            start = time.perf_counter()
            run.step(lambda mark: None)
            seconds.append(time.perf_counter() - start)

        return step

    memfit.predict(build, steps=STEPS)
    return statistics.median(seconds)


def largest() -> str:
    """In a process of its own, whose memory is counted."""
    code = "import prediction_speed; prediction_speed.predict_405b()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr[-300:]


def predict_405b() -> None:
    warnings.filterwarnings("ignore")

    def build():
        torch.distributed.init_process_group("nccl")
        run = zoo.ZOO["fsdp2_llama3_405b_w512"]("cuda")
        return lambda: run.step(lambda mark: None)

    start = time.perf_counter()
    prediction = memfit.predict(build, world_size=512)
    peak = prediction.peak_allocated
    seconds = time.perf_counter() - start
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"Llama-3 405B on 512 GPUs, three steps: {seconds:.0f} s, {host:.2f} GiB of host memory, peak {memfit.format_bytes(peak)}."
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    lines = [
        f"torch {torch.__version__}, seconds a step, median of {STEPS}; `python benchmarks/prediction_speed.py`.",
        "",
        "| modules | FakeTensorMode | MemTracker, fake | predicted | against FakeTensorMode | against MemTracker |",
        "|---|---|---|---|---|---|",
    ]
    for layers in LAYERS:
        plain, tracked, ours = bare(layers), torch_tracker(layers), predicted(layers)
        lines.append(
            f"| {8 * layers + 4} | {plain:.2f} | {tracked:.2f} | {ours:.2f} | {ours / plain:.2f} times "
            f"| {tracked / ours:.1f} times faster |"
        )
        print(lines[-1], flush=True)
    lines += ["", largest()]
    (HERE / "results" / "prediction_speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
