"""How long training steps take on an H200: measured, and predicted without one.

    python benchmarks/timing/step_time.py --measure [NAME ...]   # on a GPU: writes truth/step_times.json
    python benchmarks/timing/step_time.py [NAME ...]             # anywhere: predicts, and writes results/step_time.md and .json

``truth/h200_step_times.json`` has the 34 workloads of zoo.py; ``truth/step_times.json`` has those of more_zoo.py, looked at
after the rules were written, and ``small_*``: workloads of the zoo with so few tokens that the GPU waits for the host all the time.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
ZOO_TRUTH = BENCHMARKS / "truth" / "h200_step_times.json"
MORE_TRUTH = BENCHMARKS / "truth" / "step_times.json"
RESULTS = BENCHMARKS / "results" / "step_time"
WARM_UP, TIMED = 3, 7


def small_workloads() -> dict[str, Any]:
    """The host's part of a step alone: models of the zoo with 64 tokens."""
    import torch

    from benchmarks.workloads.zoo import LlamaArgs, ddp, fsdp1, fsdp2, hf, single

    a = LlamaArgs(seq=64)
    b = LlamaArgs(dim=2048, layers=16, heads=16, kv_heads=8, hidden=5632, seq=64, vocab=1000)
    bf16 = torch.bfloat16
    llama = {"hidden_size": 256, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000}
    return {
        "small_llama_fp32": single(a, 1),
        "small_llama_amp": single(a, 1, autocast=bf16),
        "small_llama_bf16_fused": single(a, 1, dtype=bf16, fused=True),
        "small_llama_amp_ckpt": single(a, 1, autocast=bf16, ckpt=True),
        "small_llama_sgd": single(a, 1, opt="sgd", momentum=0.9, autocast=bf16),
        "small_llama_adafactor": single(a, 1, opt="adafactor", autocast=bf16),
        "small_llama_loop": single(a, 1, autocast=bf16, foreach=False),
        "small_llama_clip": single(a, 1, autocast=bf16, clip=1.0),
        "small_fsdp2_full": fsdp2(b, 1),
        "small_fsdp2_ckpt": fsdp2(b, 1, ckpt=True),
        "small_fsdp2_no_clip": fsdp2(b, 1, clip=None),
        "small_fsdp1_full": fsdp1(b, 1),
        "small_ddp": ddp(a, 1),
        "small_hf_llama": hf("LlamaForCausalLM", llama, 1, 64),
        "small_hf_gpt2": hf("GPT2LMHeadModel", {"n_embd": 256, "n_layer": 12, "n_head": 4}, 1, 64),
        "small_hf_bert": hf("BertForMaskedLM", {"hidden_size": 192, "num_attention_heads": 12, "intermediate_size": 256}, 1, 64),
        "small_hf_vit": hf(
            "ViTForImageClassification",
            {"num_labels": 10, "hidden_size": 192, "intermediate_size": 256, "image_size": 32},
            1,
            image=32,
        ),
        "small_hf_resnet": hf("ResNetForImageClassification", {"num_labels": 10}, 1, image=64, autocast=None),
    }


def workloads() -> dict[str, Any]:
    from benchmarks.timing.library_workloads import WORKLOADS
    from benchmarks.workloads.more_zoo import MORE
    from benchmarks.workloads.zoo import ZOO

    return {**ZOO, **small_workloads(), **MORE, **WORKLOADS}


def world_size(name: str) -> int:
    """0 where the workload has no process group."""
    from benchmarks.workloads.more_zoo import WORLD_SIZES

    if name in WORLD_SIZES:
        return WORLD_SIZES[name]
    plain = name.removeprefix("small_")
    if plain.startswith("ddp"):
        return 1
    if not plain.startswith("fsdp"):
        return 0
    named = re.search(r"_w(\d+)", plain)
    return 64 if plain.endswith("_64") else int(named[1]) if named else 8


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


def join_world(name: str) -> None:
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    if "ddp" in name:
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    elif world_size(name):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size(name))


def measure_one(build: Any) -> tuple[dict[str, Any], Any]:
    """Milliseconds of a step, and the run for further steps."""
    import torch

    torch.manual_seed(0)
    run = build("cuda")
    torch.cuda.synchronize()
    is_long, steps, issued = False, [], []
    for number in range(WARM_UP + TIMED):
        start = time.perf_counter()
        run.step(lambda what: None)
        returned = time.perf_counter()
        torch.cuda.synchronize()
        is_long = is_long or (number > 0 and returned - start > 1)
        if number >= WARM_UP or (is_long and number):
            steps.append(time.perf_counter() - start)
            issued.append(returned - start)
        if is_long and len(steps) > 1:
            break
    found = {"ms": round(1000 * statistics.median(steps), 3), "issued_ms": round(1000 * statistics.median(issued), 3)}
    return found, run


def calls_of(step: Any, afterwards: Any = lambda: None) -> dict[str, Any]:
    """Every operator of one more step; ``afterwards`` is called when the GPU is done with it. A process that has used CUDA's
    profiler is slower from then on."""
    import torch

    from benchmarks.timing.gpu_calls import profiled

    with profiled(afterwards) as found, found.tracing("step"):
        step(lambda what: None)
        torch.cuda.synchronize()
    calls = {text: [len(times), round(sum(times), 1), kernels[:3]] for _, text, times, kernels in found.by_text()}
    return {"busy_ms": round(found.busy_us / 1000, 3), "num_calls": len(found.calls), "calls": calls}


def measure(names: list[str], path: pathlib.Path, seconds: float, with_calls: bool) -> None:
    """Each in a new process, one after the other: beside another, or late in the life of one, Python is up to half slower.

    Processes are copies of this one, which has imported everything and not touched the GPU: none of them waits for imports.
    """
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # a process that asked CUDA itself cannot be copied
    workloads()
    import transformers  # noqa: F401  (the copies need it)

    began, known = time.monotonic(), json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        if time.monotonic() - began > seconds:
            break
        part = path.with_suffix(".part")
        part.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            measure_here(name, part, with_calls)
        os.waitpid(child, 0)
        known[name] = json.loads(part.read_text()) if part.exists() else {"error": "the process died"}
        path.write_text(json.dumps(known) + "\n")
        told = known[name].get("ms") or known[name]["error"][-300:]
        print(f"{time.monotonic() - began:6.1f} s  {name:30s} {told}", flush=True)


def measure_here(name: str, part: pathlib.Path, with_calls: bool) -> NoReturn:
    warnings.filterwarnings("ignore")
    try:
        join_world(name)
        found, run = measure_one(workloads()[name])
        found |= calls_of(run.step) if with_calls else {}
    except Exception:
        found = {"error": traceback.format_exc()[-500:]}
    part.write_text(json.dumps(found))
    os._exit(0)


# -- predicted -------------------------------------------------------------------------------------------------------------------


def predict_one(name: str, gpu: str) -> dict[str, Any]:
    import memfit
    from benchmarks.timing.library_workloads import WORKLOADS, import_torchvision

    if name in WORKLOADS:
        import_torchvision()

    def build() -> Any:
        import torch.distributed as dist

        if world_size(name):
            dist.init_process_group("nccl")
        run = workloads()[name]("cuda")
        return lambda: run.step(lambda what: None)

    began = time.perf_counter()
    prediction = memfit.predict(build, gpu=gpu, world_size=max(1, world_size(name)), steps=3, interconnect="fake")
    spent, parts = time.perf_counter() - began, prediction.time_breakdown
    assert prediction.step_seconds is not None
    assert prediction.step_seconds_range is not None
    assert parts is not None
    return {
        "ms": round(1000 * prediction.step_seconds, 3),
        "range_ms": [round(1000 * seconds, 3) for seconds in prediction.step_seconds_range],
        "compute_ms": round(1000 * parts.compute, 3),
        "host_ms": round(1000 * parts.host, 3),
        "idle_ms": round(1000 * parts.idle, 3),
        "tokens_per_second": prediction.tokens_per_second,
        "mfu": prediction.mfu,
        "peak_allocated": prediction.peak_allocated,
        "peak_reserved": prediction.peak_reserved,
        "seconds": round(spent, 1),
    }


def predict(names: list[str], jobs: int) -> dict[str, dict[str, Any]]:
    def in_a_process(name: str) -> dict[str, Any]:
        done = subprocess.run([sys.executable, __file__, "--predict-here", name], capture_output=True, text=True, check=False)
        line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
        found: dict[str, Any] = json.loads(line[7:]) if line else {"error": done.stderr[-300:]}
        print(f"{name:28s} {found.get('ms', found.get('error'))}", flush=True)
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip(names, pool.map(in_a_process, names), strict=True))


def measured() -> dict[str, float]:
    """Milliseconds of a step, from both files."""
    found: dict[str, float] = dict(json.loads(ZOO_TRUTH.read_text())["steps"])
    if MORE_TRUTH.exists():
        found |= {
            name: entry["ms"] for name, entry in json.loads(MORE_TRUTH.read_text()).items() if name not in found and "ms" in entry
        }
    return found


def errors(names: list[str], truth: dict[str, float], found: dict[str, dict[str, Any]]) -> list[float]:
    return sorted(abs(found[name]["ms"] / truth[name] - 1) for name in names if "ms" in found.get(name, {}))


def write_results(found: dict[str, dict[str, Any]]) -> None:
    """What was predicted before stays where it is not predicted again."""
    known = json.loads(RESULTS.with_suffix(".json").read_text()) if RESULTS.with_suffix(".json").exists() else {}
    found = known | found
    RESULTS.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    truth, zoo = measured(), list(json.loads(ZOO_TRUTH.read_text())["steps"])
    parts = {
        "The zoo": [name for name in zoo if name in found],
        "Further workloads": [name for name in truth if name in found and name not in zoo and not name.startswith("small_")],
    }
    lines = [
        "# Step time on an H200, predicted without one",
        "",
        "Written by `python benchmarks/timing/step_time.py`. Distributed workloads are one rank of many, under torch's fake group.",
        "",
    ]
    for title, names in parts.items():
        off = errors(names, truth, found)
        if not off:
            continue
        lines += [f"## {title}: off by {statistics.median(off):.1%} median, {off[-1]:.1%} worst, {len(off)} workloads", ""]
        lines += [
            "| workload | measured ms | predicted ms | off by | GPU at work ms | host at work ms |",
            "|---|---:|---:|---:|---:|---:|",
        ]
        for name in names:
            entry = found[name]
            if "ms" not in entry:
                lines.append(f"| {name} | {truth[name]:,.1f} | failed | | | |")
                continue
            off_by = entry["ms"] / truth[name] - 1
            shown = f"{entry['ms']:,.1f} | {off_by:+.1%} | {entry['compute_ms']:,.1f} | {entry['host_ms']:,.1f}"
            lines.append(f"| {name} | {truth[name]:,.1f} | {shown} |")
        lines.append("")
    RESULTS.with_suffix(".md").write_text("\n".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*")
    parser.add_argument("--measure", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--predict-here", metavar="NAME")
    parser.add_argument("--gpu", default="H200", help="a card of that machine, as calibrated.py made it")
    parser.add_argument("--calls", action="store_true", help="also every operator of a step, with its time on the GPU")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="no further workload begins after these")
    options = parser.parse_args()
    if options.predict_here:
        warnings.filterwarnings("ignore")
        print("RESULT " + json.dumps(predict_one(options.predict_here, options.gpu)))
    elif options.measure:
        names = options.workloads or list(workloads())
        measure(names, options.measure, options.seconds, options.calls)
    else:
        write_results(predict(options.workloads or [name for name in measured() if not name.startswith("small_")], options.jobs))
