"""What a prediction costs, side by side in one run, on the host.

    python benchmarks/speed/prediction_speed.py

One training step of the same Llama with 480 modules and more: under bare ``FakeTensorMode``, under PyTorch's ``MemTracker`` on fake
host tensors, and predicted. Then Llama-3 405B on 512 GPUs, three steps, with the memory of the process. Then compiled training, in
seconds of one core: a Llama of eight layers against torch's own lowering of it, and Llama-3 8B with compiled blocks. Then every
kind of rank of Llama-3 405B in three dimensions, as typed on the command line. Writes ``results/prediction_speed.md``;
``--compiled`` and ``--ranks`` print the figures of compiled training and of all ranks alone.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import memfit

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.workloads import zoo

BENCHMARKS = pathlib.Path(__file__).parents[1]

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
    code = "from benchmarks.speed import prediction_speed; prediction_speed.predict_405b()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=BENCHMARKS.parent)
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


COMPILED = zoo.LlamaArgs(dim=1024, layers=8, heads=16, kv_heads=8, hidden=2816, vocab=16000, seq=1024)


def compiled_step(device: str, **options):
    """One training step of a compiled Llama."""
    with torch.device(device):
        model = zoo.Llama(COMPILED)
    compiled, optimizer = torch.compile(model, **options), torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, labels = zoo.lm_batch(COMPILED, 2, device)

    def step():
        torch.nn.functional.cross_entropy(compiled(tokens).flatten(0, 1), labels.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def lower_compiled() -> None:
    """What torch does by itself, on fake tensors of the host: Dynamo, AOTAutograd, Inductor's lowering; nothing is built."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.aot_autograd import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._guards import detect_fake_mode
    from torch._inductor import cpu_vec_isa
    from torch._inductor.debug import DebugContext
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    cpu_vec_isa.pick_vec_isa = lambda: cpu_vec_isa.invalid_vec_isa  # it would build a program to find out

    def write(module, inputs):
        graph = GraphLowering(module, example_inputs=inputs)
        with V.set_fake_mode(detect_fake_mode(inputs)), V.set_debug_handler(DebugContext()), V.set_graph_handler(graph):
            graph.run(*inputs)
            graph.codegen()
        return make_boxed_func(module.forward)

    backend = aot_autograd(
        fw_compiler=write,
        bw_compiler=write,
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        step = compiled_step("cpu", backend=backend)
        start = time.process_time()
        step()
        print(time.process_time() - start)


def predict_compiled() -> None:
    seconds = []

    def build():
        step = compiled_step("cuda")

        def timed():
            start = time.process_time()
            step()
            seconds.append(time.process_time() - start)

        return timed

    memfit.predict(build, steps=1)
    print(seconds[0])


def predict_8b() -> None:
    from memfit.cli import main as command

    flags = ["--strategy", "full_shard", "--compile", "blocks", "--world-size", "8", "--gpu", "H200", "--json"]
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        status = command(["predict", "--model", "llama3-8b", *flags, "--out", f"{folder}/run.memfit"])
    assert status == 0, status
    print(time.process_time() - start)


def seconds_of(function: str) -> float:
    """Of one core, in a process of its own."""
    code = f"from benchmarks.speed import prediction_speed; prediction_speed.{function}()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=BENCHMARKS.parent, check=True
    )
    return float(done.stdout.strip().splitlines()[-1])


def compiled_lines() -> list[str]:
    lowered, predicted_seconds, large = (seconds_of(name) for name in ("lower_compiled", "predict_compiled", "predict_8b"))
    return [
        f"A compiled step of a Llama with {COMPILED.layers} layers, seconds of one core: {lowered:.1f} for torch's own lowering on "
        f"fake tensors, {predicted_seconds:.1f} predicted, {predicted_seconds / lowered:.2f} times as much.",
        f"Llama-3 8B with compiled blocks on 8 GPUs, three steps: {large:.1f} seconds of one core.",
    ]


JOB = "--model llama3-405b --world-size 512 --gpu H100-80GB --mesh dp=8,tp=8,pp=8 --microbatches 16 --ranks all"
SCHEDULES = ("1f1b", "interleaved-1f1b")


def all_ranks_line(schedule: str) -> str:
    """Seconds on the clock, and of processors, which count on a machine that does other things meanwhile."""
    code = "import sys; from memfit.cli import main; sys.exit(main())"
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                code,
                "predict",
                *JOB.split(),
                "--schedule",
                schedule,
                "--json",
                "--out",
                f"{folder}/run.memfit",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent, cores = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, len(os.sched_getaffinity(0))
    found = json.loads(done.stdout)
    worst, peak = found["worst_rank"], memfit.format_bytes(found["peak_allocated"])
    return (
        f"`memfit predict {JOB} --schedule {schedule}`: {len(found['ranks'])} kinds of ranks, {seconds:.0f} s on {cores} cores, "
        f"{spent:.0f} s of processors; rank {worst} needs most, {peak} allocated."
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    if "--compiled" in sys.argv[1:]:
        print("\n".join(compiled_lines()))
        return
    if "--ranks" in sys.argv[1:]:
        print("\n".join(map(all_ranks_line, SCHEDULES)))
        return
    lines = [
        f"torch {torch.__version__}, seconds a step, median of {STEPS}; `python benchmarks/speed/prediction_speed.py`.",
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
    lines += ["", largest(), *compiled_lines(), *map(all_ranks_line, SCHEDULES)]
    (BENCHMARKS / "results" / "prediction_speed.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
