"""Predict on a machine that has a GPU, and check that the GPU noticed nothing.

    python benchmarks/accuracy/host_with_gpu.py            # six workloads of the zoo; writes results/host_with_gpu.md
    python benchmarks/accuracy/host_with_gpu.py llama_amp  # others

Predictions are compared with ``truth/h200_truth.json``. Beside them: CUDA is not initialised by a prediction, the GPU's memory is
as before, ``torch.cuda`` answers for the predicted GPU inside and for the real one afterwards, and real work runs after a
prediction. A process that has used its GPU is refused, with what to do instead.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
WORKLOADS = ("llama_amp", "llama_bf16_fused", "hf_gpt2", "hf_resnet", "fsdp2_full", "ddp")


def predict_one(name: str) -> dict:
    """In a process of its own, whose first contact with CUDA this is."""
    warnings.filterwarnings("ignore")
    import torch

    import memfit
    from benchmarks.accuracy.accuracy import ranks_of, truth_of

    checks = {"a GPU is there": torch.cuda.is_available(), "not initialised before": not torch.cuda.is_initialized()}
    build = building(name)
    truth = truth_of("zoo")[name]
    options = dict(world_size=max(ranks_of(name)[0], 1), steps=len(truth["iters"]), torch_version="2.11+cu130")
    prediction = memfit.predict(build, gpu="A100-80GB" if name == "hf_gpt2" else "H200", **options)
    again = memfit.predict(build, gpu=prediction.target.gpu.name, **options)
    checks["the same a second time"] = again.peak_allocated == prediction.peak_allocated
    checks["not initialised by it"] = not torch.cuda.is_initialized()
    checks["real work afterwards"] = real_work_is_right()
    checks["the real GPU has its name"] = torch.cuda.get_device_name() == nvidia_smi("name")
    checks["refused after real work"] = is_refused(build)
    checks["real work after that"] = real_work_is_right()
    return {
        "name": name,
        "gpu": prediction.target.gpu.name,
        "peak": int(prediction.peak_allocated),
        "true_peak": max(truth["peak"], truth["init"]["peak"]),
        "failed": [check for check, passed in checks.items() if not passed],
    }


def is_refused(build) -> bool:
    import memfit
    from memfit.errors import ConfigError

    try:
        memfit.predict(build)
    except ConfigError as error:
        return "in a process of its own" in str(error)
    return False


def building(name: str):
    import torch

    from benchmarks.workloads import zoo

    expected = "A100-80GB" if name == "hf_gpt2" else "H200"

    def build():
        assert torch.cuda.get_device_name() == f"NVIDIA {expected}", "inside it is the predicted one"
        if name.startswith(zoo.DISTRIBUTED):
            torch.distributed.init_process_group("nccl")
        run = zoo.ZOO[name]("cuda")
        return lambda: run.step(lambda mark: None)

    return build


def real_work_is_right() -> bool:
    """A step on the real GPU, in which autograd, a stream and the allocator take part."""
    import torch

    weight = torch.full((64, 64), 0.5, device="cuda", requires_grad=True)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        (weight * 2).sum().backward()
    torch.cuda.synchronize()
    return bool((weight.grad == 2).all()) and torch.cuda.memory_allocated() > 0 and weight.is_cuda


def nvidia_smi(query: str) -> str:
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def in_fresh_process(name: str) -> dict:
    done = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=600)
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(answers[-1]) if answers else {"name": name, "failed": done.stderr.strip().splitlines()[-1:]}


def row(found: dict) -> str:
    failed = "; ".join(found["failed"]) or "none"
    if "peak" not in found:
        return f"| {found['name']} | | | | {failed} |"
    off = f"{100 * (found['peak'] / found['true_peak'] - 1):+.2f} %" if found["gpu"] == "H200" else "another GPU"
    return f"| {found['name']} | {found['gpu']} | {found['peak'] / 2**20:,.1f} | {off} | {failed} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", default=WORKLOADS)
    parser.add_argument("--one", action="store_true", help="in this process, as JSON")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(predict_one(args.workloads[0])))
        return
    rows = [in_fresh_process(name) for name in args.workloads]
    lines = ["Predicted on a machine with a GPU: `python benchmarks/accuracy/host_with_gpu.py`.", ""]
    lines += ["| workload | predicted for | peak, MiB | off | failed checks |", "|---|---|---|---|---|", *map(row, rows)]
    print("\n".join(lines))
    if args.workloads == WORKLOADS:
        (BENCHMARKS / "results" / "host_with_gpu.md").write_text("\n".join(lines) + "\n")
    sys.exit(any(found["failed"] for found in rows))


if __name__ == "__main__":
    main()
