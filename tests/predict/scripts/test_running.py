"""Unmodified scripts, run by ``memfit run`` and ``memfit predict``; each framework with a tiny model of its own."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from helpers.prepared_process import MEMFIT, run_prepared

from memfit.cli import main
from memfit.job import PredictOptions
from memfit.predict.result import Prediction
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script
from memfit.predict.scripts.stopping import Bounds

PLAIN = """
import sys
import torch
from torch import nn

assert sys.argv[1:] == ["--flag"]
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(32, 64))
for epoch in range(100):
    for (x,) in torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, pin_memory=True):
        loss = model(x.to(device, non_blocking=True)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
"""

DISTRIBUTED = """
import os
import torch
from torch import nn

torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[int(os.environ["LOCAL_RANK"])])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TRAINER = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        tokens = torch.randint(0, 100, (16,))
        return {"input_ids": tokens, "labels": tokens}

model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=2, vocab_size=100))
args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=50, bf16=True, report_to=[])
Trainer(model=model, args=args, train_dataset=Data()).train()
"""

ACCELERATE = """
import torch
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="bf16")
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=8)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for (x,) in loader:
    accelerator.backward(model(x).pow(2).mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""

SPAWNING = """
import torch
import torch.distributed as dist
from torch import nn


def worker(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).to(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(8, 64, device=rank)).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.save(model.state_dict(), "model.pt")
        stop = torch.tensor(0, device=rank)
        dist.all_reduce(stop)
        if stop.item() or not torch.isfinite(loss):
            break


if __name__ == "__main__":
    torch.multiprocessing.spawn(worker, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
"""

LIGHTNING = """
import lightning
import torch

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def training_step(self, batch, index):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 64)), batch_size=8)
trainer = lightning.Trainer(accelerator="gpu", devices=1, max_epochs=5, logger=False, enable_checkpointing=False,
                            enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Module(), loader)
"""


def memfit(*arguments: str, cwd: Path) -> dict:
    done = run_prepared(MEMFIT, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # what the script prints is not there


@pytest.mark.parametrize(
    ("script", "needs", "flags"),
    [
        (PLAIN, "torch", ["--flag"]),
        (TRAINER, "transformers", []),
        (ACCELERATE, "accelerate", []),
        (LIGHTNING, "lightning", []),
    ],
    ids=["plain", "trainer", "accelerate", "lightning"],
)
def test_a_script_runs_unmodified(script: str, needs: str, flags: list[str], tmp_path: Path):
    if importlib.util.find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    (tmp_path / "train.py").write_text(script)
    figures = memfit("run", "--gpu", "H100", "--steps", "2", "--json", "train.py", *flags, cwd=tmp_path)
    assert figures["fits"]
    assert figures["peak_allocated"] > 64 * 2**20  # cuBLAS alone takes that much
    assert (tmp_path / "run.memfit").is_file()


def test_a_distributed_script_is_one_rank_of_many(tmp_path: Path):
    (tmp_path / "train.py").write_text(DISTRIBUTED)
    figures = memfit("run", "--nproc", "16", "--json", "train.py", cwd=tmp_path)
    assert figures["communicators"] > 0


def test_a_script_that_starts_its_own_processes(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SPAWNING)
    prediction = run_here("train.py", world_size=4)
    assert prediction.verdict.communicators > 0
    assert not Path("model.pt").exists()
    assert any("torch.save" in sentence for sentence in prediction.assumptions)


def run_here(script: str, *arguments: str, world_size: int = 1) -> Prediction:
    job = read_command([script, *arguments], world_size if world_size > 1 else None)
    return run_script(job, PredictOptions(gpu="H100", torch_version="2.11+cu130"), Bounds(steps=2)).prediction


@pytest.mark.parametrize("where", ["shell", "script"])
def test_the_allocators_settings_in_the_environment_count(where: str, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:32")  # read where the other is not set
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True" if where == "shell" else "")
    setting = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n" if where == "script" else ""
    (tmp_path / "train.py").write_text(setting + PLAIN)
    prediction = run_here(str(tmp_path / "train.py"), "--flag")
    assert prediction.ledger.info.alloc_conf == prediction.alloc_conf == "expandable_segments:True"


def test_what_is_expected_can_be_said_on_the_command_line(tmp_path: Path, monkeypatch, capsys):
    code = (
        "import torch\n"
        "def build():\n"
        "    x = torch.randn(2**20, device='cuda')\n"
        "    kept = []\n"
        "    return lambda: kept.append(x[x > 0])\n"
    )
    monkeypatch.chdir(tmp_path)
    Path("expecting.py").write_text(code)
    peaks = []
    for expected in ([], ["--expected", "expecting.py:5=0.25"]):
        assert main(["predict", "expecting.py:build", "--json", "--steps", "1", *expected]) == 0
        figures = json.loads(capsys.readouterr().out)
        peaks.append(figures["peak_allocated"])
    assert peaks[0] - peaks[1] >= 3 * 2**20
    assert any("as expected" in sentence for sentence in figures["assumptions"])
    assert main(["predict", "expecting.py:build", "--expected", "masks=1"]) == 2
    assert "cannot expect anything of 'masks'" in capsys.readouterr().err


FAILING = """
import torch


def work(x):
    return x.__dlpack__()


work(torch.ones(3, device="cuda"))
"""


def test_the_users_traceback_is_read_line_by_line(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(FAILING)
    assert main(["run", "train.py"]) == 2
    _, _, *lines = capsys.readouterr().err.splitlines()  # the first two say what is held back, and that losses are made up
    assert lines[0] == "memfit: error: train.py failed."
    assert lines[3].strip().startswith('File "train.py", line 9')
    assert "DLPack needs a real GPU" in lines[-3]
    assert lines[-1].endswith("or do the work in PyTorch.")


def test_a_script_that_leaves_with_an_error(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    assert main(["run", "train.py", "--unknown"]) == 2
    assert "train.py left with status 2" in capsys.readouterr().err.splitlines()[-1]


def test_a_function_in_a_file(tmp_path: Path):
    code = "import torch\ndef build():\n    x = torch.empty(2**20, device='cuda')\n    return lambda: x.add_(1)\n"
    (tmp_path / "model.py").write_text(code)
    figures = memfit("predict", "model.py:build", "--json", "--out", "x.memfit", cwd=tmp_path)
    assert figures["peak_allocated"] == 4 * 2**20
    assert (tmp_path / "x.memfit").is_file()


@pytest.mark.parametrize("argv", [["predict", "model.py"], ["predict", "none.py:build"], ["run", "none.py"]])
def test_mistakes_are_told_in_a_line(argv: list[str], tmp_path: Path):
    done = run_prepared(MEMFIT, *argv, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("memfit: error:")
    assert len(done.stderr.splitlines()) == 1
