"""A real out-of-memory error on a GPU, explained; and whether what the explanation says would help, does.

    python benchmarks/recording/oom_on_gpu.py FOLDER      on a machine with a GPU; one fresh process a run

Writes FOLDER/oom.memfit (from memfit.track(..., on_oom=...)), FOLDER/snapshot.pickle (PyTorch's own), what `memfit explain` says of
each, and FOLDER/remedies.json and .md: per remedy what the replay said, and whether the run completes with it in the same memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BATCH, LENGTH, WIDTH, NUM_LAYERS, VOCABULARY, NUM_STEPS = 16, 1024, 1024, 12, 32000, 2
SHARE = 0.8
"""Of what the run reserves with memory to spare: how much it is given."""

RUNS = {
    "as it was": {},
    "expandable_segments:True": {"conf": "expandable_segments:True"},
    "max_split_size_mb:128": {"conf": "max_split_size_mb:128"},
    "half the micro-batch": {"batch": BATCH // 2},
    "activation checkpointing of every repeated layer": {"checkpointed": True},
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    free = run({"what": "free"})
    limit = int(SHARE * free["reserved"])
    print(f"with memory to spare it reserves {free['reserved'] >> 20} MiB; from now on it may take {limit >> 20} MiB")
    print(run({"what": "fail", "limit": limit, "folder": str(folder)}))
    for name in ("oom.memfit", "snapshot.pickle"):
        explain(folder, name)
    said = json.loads((folder / "oom.memfit.json").read_text())
    remedies = {remedy["what"]: remedy for remedy in said["remedies"]}
    rows = []
    for name, change in RUNS.items():
        real = run({"what": "free", "limit": limit} | change)
        replayed = remedies.get(name, {"served": False, "peak_allocated": said["allocated"]})
        rows.append({"with": name, "replay serves the request": replayed["served"], "replay": replayed, "real": real})
        print(f"{name}: replay serves the request {replayed['served']}, the run completes {real['completes']}")
    (folder / "remedies.json").write_text(json.dumps({"limit": limit, "runs": rows}, indent=1))
    (folder / "remedies.md").write_text(table(limit, rows))


def table(limit: int, rows: list[dict]) -> str:
    real = rows[0]["real"]
    lines = [
        f"# An out-of-memory error, explained ({real['device']}, torch {real['torch']})",
        "",
        f"`python benchmarks/recording/oom_on_gpu.py FOLDER`: a transformer limited to {limit >> 20:,} MiB runs out in its second",
        "step. What `memfit explain` says of the ledger, and whether a run with that change completes in the same memory.",
        "",
        "| with | the replay serves the request | smallest fit, MiB | the run completes |",
        "|---|---|---|---|",
    ]
    for row in rows:
        least = row["replay"].get("smallest_fit")
        fit, said = f"{least >> 20:,}" if least else "", "yes" if row["replay"]["served"] else "no"
        lines.append(f"| {row['with']} | {said} | {fit} | {'yes' if row['real']['completes'] else 'no'} |")
    return "\n".join(lines) + "\n"


def run(job: dict) -> dict:
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": job.get("conf", "")}
    done = subprocess.run([sys.executable, __file__, json.dumps(job)], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{job}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def explain(folder: Path, name: str) -> None:
    for suffix, flags in ((".txt", []), (".json", ["--json"])):
        command = [sys.executable, "-c", "import memfit.cli; raise SystemExit(memfit.cli.main())", "explain", name, *flags]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        (folder / f"{name}{suffix}").write_text(done.stdout + done.stderr)
        if not flags:
            print(done.stdout + done.stderr)


# -- in a process of its own -------------------------------------------------------------------------------------------------


def perform(job: dict) -> dict:
    import torch

    import memfit

    torch.cuda.init()
    if "limit" in job:
        torch.cuda.set_per_process_memory_fraction(job["limit"] / torch.cuda.get_device_properties(0).total_memory)
    if job["what"] == "fail":
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, context="alloc", stacks="python")
    model, optimizer, step = build(job.get("batch", BATCH), job.get("checkpointed", False))
    folder = Path(job["folder"]) if "folder" in job else None
    said = ""
    try:
        if folder is not None:
            with memfit.track(model, optimizer, on_oom=folder / "oom.memfit"):
                train(step)
        else:
            train(step)
    except torch.OutOfMemoryError as error:
        said = str(error)
    if folder is not None:
        torch.cuda.memory._dump_snapshot(str(folder / "snapshot.pickle"))
    figures = {"allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    return figures | {"completes": not said, "error": said, "device": torch.cuda.get_device_name(), "torch": torch.__version__}


def train(step) -> None:
    for _ in range(NUM_STEPS):
        step()


def build(batch: int, checkpointed: bool):
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, WIDTH)
            layer = nn.TransformerEncoderLayer
            self.layers = nn.ModuleList(
                layer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True) for _ in range(NUM_LAYERS)
            )
            self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

        def forward(self, tokens):
            hidden = self.embed(tokens)
            for layer in self.layers:
                hidden = checkpoint(layer, hidden, use_reentrant=False) if checkpointed else layer(hidden)
            return self.head(hidden)

    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        tokens = torch.randint(0, VOCABULARY, (batch, LENGTH), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, optimizer, step


if __name__ == "__main__":
    if sys.argv[1].startswith("{"):
        print(json.dumps(perform(json.loads(sys.argv[1]))))
    else:
        main(Path(sys.argv[1]))
