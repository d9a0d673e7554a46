"""Kernels that are not torch's: measured on a GPU, predicted without one, compared.

    python benchmarks/kernels/foreign_kernels.py --measure    # on a GPU, 3 minutes: writes truth/foreign_kernels.json, or to --out
    python benchmarks/kernels/foreign_kernels.py --predict    # anywhere: predicts, compares, and writes results/foreign_kernels.md
    python benchmarks/kernels/foreign_kernels.py --predict liger_rope user_autotuned      # some of them, nothing is written

Each case runs in a process of its own. Liger, PEFT and bitsandbytes are found by ``PYTHONPATH``; a case whose package is not there
is skipped, and said to be. A user's Triton kernels, autotuned ones among them, are in this file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "foreign_kernels.json"
RESULTS = BENCHMARKS / "results" / "foreign_kernels.md"
STEPS = 3
Step = Callable[[], Any]


# -- a user's own kernels --------------------------------------------------------------------------------------------------------


def user_kernels() -> dict[str, Any]:
    import triton
    import triton.language as tl

    @triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
    @triton.jit
    def scale_kernel(x, out, factor, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, mask=i < n) * factor, mask=i < n)

    @triton.autotune(
        configs=[triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((256, 4), (512, 4), (1024, 8))],
        key=["n"],
        restore_value=["out"],
    )
    @triton.jit
    def accumulate_kernel(x, out, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        old = tl.load(out + i, mask=i < n)
        tl.store(out + i, old + tl.load(x + i, mask=i < n), mask=i < n)

    return {"scale": scale_kernel, "accumulate": accumulate_kernel, "cdiv": triton.cdiv}


def scaled(kernels: dict[str, Any], x: Any, factor: float) -> Any:
    out = torch.empty_like(x)
    kernels["scale"][lambda meta: (kernels["cdiv"](x.numel(), meta["BLOCK"]),)](x, out, factor, x.numel(), BLOCK=1024)
    return out


def user_plain() -> Step:
    """A kernel in a function of autograd, around a linear layer."""
    kernels = user_kernels()

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return scaled(kernels, x, 2.0)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return scaled(kernels, grad.contiguous(), 2.0)

    layer = torch.nn.Linear(2048, 2048, device="cuda", dtype=torch.bfloat16)
    return training(layer, lambda: Scale.apply(layer(torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16))))


def user_autotuned() -> Step:
    """Tuned for two sizes, the second of which comes up in the second step only."""
    kernels = user_kernels()
    layer = torch.nn.Linear(2048, 2048, device="cuda", dtype=torch.float32)
    num_calls = [0]

    def forward() -> Any:
        num_calls[0] += 1
        out = layer(torch.randn(4096, 2048, device="cuda"))
        total = torch.zeros(out.numel() // (1 if num_calls[0] < 2 else 2), device="cuda")
        grid = lambda meta: (kernels["cdiv"](total.numel(), meta["BLOCK"]),)  # noqa: E731
        kernels["accumulate"][grid](out.detach().flatten(), total, total.numel())
        return out

    return training(layer, forward)


def user_operator() -> Step:
    """An operator made with ``triton_op``, with a backward, and with memory that it takes inside."""
    kernels = user_kernels()

    @torch.library.triton_op("memfit_bench::halve", mutates_args={})
    def halve(x: torch.Tensor) -> torch.Tensor:
        between = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        torch.library.wrap_triton(kernels["scale"].fn)[(kernels["cdiv"](x.numel(), 1024),)](
            x, between, 0.5, x.numel(), BLOCK=1024, EVEN=True
        )
        return between.to(x.dtype)

    halve.register_autograd(lambda ctx, grad: halve(grad.contiguous()))
    layer = torch.nn.Linear(2048, 2048, device="cuda", dtype=torch.bfloat16)
    return training(layer, lambda: halve(layer(torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16))))


# -- Liger -----------------------------------------------------------------------------------------------------------------------

ROWS, WIDTH, VOCABULARY = 4096, 2048, 32000


def liger_rms_norm() -> Step:
    from liger_kernel.transformers import LigerRMSNorm

    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), LigerRMSNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    model.to("cuda", torch.bfloat16)
    return training(model, lambda: model(torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)))


def liger_rope() -> Step:
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    layer = torch.nn.Linear(WIDTH, 2 * WIDTH, device="cuda", dtype=torch.bfloat16)
    cos, sin = (torch.randn(1, ROWS // 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def forward() -> Any:
        query, key = layer(torch.randn(4, ROWS // 4, WIDTH, device="cuda", dtype=torch.bfloat16)).chunk(2, dim=-1)
        heads = [x.view(4, ROWS // 4, WIDTH // 64, 64).transpose(1, 2) for x in (query, key)]
        query, key = liger_rotary_pos_emb(*heads, cos, sin)
        return query + key

    return training(layer, forward)


def liger_swiglu() -> Step:
    from liger_kernel.transformers import LigerSwiGLUMLP
    from transformers import LlamaConfig

    model = LigerSwiGLUMLP(LlamaConfig(hidden_size=WIDTH, intermediate_size=5632)).to("cuda", torch.bfloat16)
    return training(model, lambda: model(torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)))


def liger_cross_entropy() -> Step:
    from liger_kernel.transformers import LigerCrossEntropyLoss

    layer, loss = torch.nn.Linear(WIDTH, VOCABULARY, device="cuda", dtype=torch.bfloat16), LigerCrossEntropyLoss()
    labels = torch.randint(0, VOCABULARY, (ROWS,), device="cuda")
    return training(layer, lambda: loss(layer(torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)), labels))


def liger_fused_linear_cross_entropy() -> Step:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    body = torch.nn.Linear(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False, device="cuda", dtype=torch.bfloat16)
    loss = LigerFusedLinearCrossEntropyLoss()
    labels = torch.randint(0, VOCABULARY, (ROWS,), device="cuda")

    def forward() -> Any:
        return loss(head.weight, body(torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)), labels)

    return training(torch.nn.ModuleList([body, head]), forward)


def llama(num_layers: int = 8) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=num_layers,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    return LlamaForCausalLM(config).to("cuda", torch.bfloat16)


def training_on_tokens(model: Any, optimizer: Any = None) -> Step:
    tokens = torch.randint(0, VOCABULARY, (4, 1024), device="cuda")
    return training(model, lambda: model(input_ids=tokens, labels=tokens).loss, optimizer)


def liger_llama() -> Step:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama()
    return training_on_tokens(llama())


# -- adapters and quantised models -----------------------------------------------------------------------------------------------


def peft_lora() -> Step:
    from peft import LoraConfig, get_peft_model

    return training_on_tokens(get_peft_model(llama(), LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")))


def bitsandbytes_linear4bit() -> Step:
    import bitsandbytes

    def quantised() -> Any:
        return bitsandbytes.nn.Linear4bit(
            WIDTH, WIDTH, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", compress_statistics=True
        )

    model = torch.nn.Sequential(quantised(), torch.nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16), quantised()).cuda()
    return training(model, lambda: model(torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)))


def bitsandbytes_adam8bit() -> Step:
    import bitsandbytes

    model = llama(4)
    return training_on_tokens(model, bitsandbytes.optim.AdamW8bit(model.parameters()))


def bitsandbytes_paged() -> Step:
    import bitsandbytes

    model = llama(4)
    return training_on_tokens(model, bitsandbytes.optim.PagedAdamW32bit(model.parameters()))


# -- running them ----------------------------------------------------------------------------------------------------------------


def training(model: Any, forward: Callable[[], Any], optimizer: Any = None) -> Step:
    trained = [param for param in model.parameters() if param.requires_grad]
    optimizer = optimizer or torch.optim.AdamW(trained)

    def step() -> None:
        forward().float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


CASES: dict[str, tuple[Callable[[], Step], tuple[str, ...]]] = {
    "user_plain": (user_plain, ()),
    "user_autotuned": (user_autotuned, ()),
    "user_operator": (user_operator, ()),
    "liger_rms_norm": (liger_rms_norm, ("liger_kernel",)),
    "liger_rope": (liger_rope, ("liger_kernel",)),
    "liger_swiglu": (liger_swiglu, ("liger_kernel", "transformers")),
    "liger_cross_entropy": (liger_cross_entropy, ("liger_kernel",)),
    "liger_fused_linear_cross_entropy": (liger_fused_linear_cross_entropy, ("liger_kernel",)),
    "liger_llama": (liger_llama, ("liger_kernel", "transformers")),
    "peft_lora": (peft_lora, ("peft", "transformers")),
    "bitsandbytes_linear4bit": (bitsandbytes_linear4bit, ("bitsandbytes",)),
    "bitsandbytes_adam8bit": (bitsandbytes_adam8bit, ("bitsandbytes", "transformers")),
    "bitsandbytes_paged": (bitsandbytes_paged, ("bitsandbytes", "transformers")),
}
"""By name: how it is built, and the packages that it needs beside torch and Triton."""


def measure_case(name: str) -> dict[str, Any]:
    def reading() -> dict[str, int]:
        torch.cuda.synchronize()
        found = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
        torch.cuda.reset_peak_memory_stats()
        return found

    step = CASES[name][0]()
    readings = [reading()]
    for _ in range(STEPS):
        step()
        readings.append(reading())
    return {"readings": readings, "torch": torch.__version__, "gpu": torch.cuda.get_device_name()}


def predict_case(name: str) -> dict[str, Any]:
    import memfit

    prediction = memfit.predict(CASES[name][0], gpu="H200", steps=STEPS, torch_version="2.11+cu130")
    peaks = (prediction.init, *prediction.steps)
    return {
        "readings": [{"allocated": int(peak.peak_allocated), "reserved": int(peak.peak_reserved)} for peak in peaks],
        "assumptions": list(prediction.assumptions),
    }


def in_a_process(name: str, mode: str) -> dict[str, Any]:
    missing = [package for package in CASES[name][1] if importlib.util.find_spec(package) is None]
    if missing:
        return {"skipped": f"{', '.join(missing)} is not installed"}
    done = subprocess.run([sys.executable, __file__, "--one", name, mode], capture_output=True, text=True, check=False)
    line = next((text for text in reversed(done.stdout.splitlines()) if text.startswith("{")), None)
    return json.loads(line) if line and done.returncode == 0 else {"failed": done.stderr[-800:]}


def run_all(names: list[str], mode: str, num_workers: int) -> dict[str, dict[str, Any]]:
    with ThreadPoolExecutor(num_workers) as pool:
        found = dict(zip(names, pool.map(lambda name: in_a_process(name, mode), names), strict=True))
    for name, result in found.items():
        if "readings" not in result:
            print(f"{name}: {result.get('skipped') or result['failed']}", flush=True)
    return found


def compare(found: dict[str, dict[str, Any]], truth: dict[str, dict[str, Any]]) -> list[str]:
    """A table: the highest peak of all steps, predicted, and how far it is from what was measured."""
    lines = ["| case | allocated, MiB | off | reserved, MiB | off | worst step, allocated |", "|---|---|---|---|---|---|"]
    for name, result in found.items():
        if "readings" not in result:
            continue
        cells = [name]
        for kind in ("allocated", "reserved"):
            predicted = max(reading[kind] for reading in result["readings"])
            cells += [f"{predicted / 2**20:.1f}", off(predicted, real(truth, name, kind))]
        by_step = [each["allocated"] for each in truth.get(name, {}).get("readings", [])]
        differences = [mine["allocated"] / real - 1 for mine, real in zip(result["readings"], by_step, strict=False) if real]
        cells.append(f"{max(differences, key=abs):+.2%}" if differences else "not measured")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def real(truth: dict[str, dict[str, Any]], name: str, kind: str) -> int | None:
    readings = truth.get(name, {}).get("readings")
    return max(reading[kind] for reading in readings) if readings else None


def off(predicted: int, measured: int | None) -> str:
    return "not measured" if not measured else f"{predicted / measured - 1:+.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--out", type=pathlib.Path, help="where --measure writes")
    parser.add_argument("--one", nargs=2, metavar=("CASE", "MODE"), help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="cases; all of them without")
    given = parser.parse_args()
    if given.one:
        warnings.filterwarnings("ignore")
        name, mode = given.one
        print(json.dumps((measure_case if mode == "measure" else predict_case)(name)))
        return
    names = given.names or list(CASES)
    if given.measure:
        found = {name: each for name, each in run_all(names, "measure", 4).items() if "readings" in each}
        where = given.out or TRUTH
        known = json.loads(where.read_text()) if where.exists() else {}
        where.write_text(json.dumps(known | found, indent=1) + "\n")
        print(f"{len(found)} of {len(names)} cases are in {where}")
        return
    truth = json.loads(TRUTH.read_text()) if TRUTH.exists() else {}
    table = compare(run_all(names, "predict", 2), truth)
    print("\n".join(table))
    if not given.names:
        title = "Kernels that are not torch's, predicted and measured: `python benchmarks/kernels/foreign_kernels.py --predict`."
        RESULTS.write_text("\n".join([title, "", *table]) + "\n")


if __name__ == "__main__":
    main()
