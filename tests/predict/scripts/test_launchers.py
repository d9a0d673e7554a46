"""What people type to start a run, read as its launcher reads it, and run in this process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memfit.cli import main
from memfit.errors import ConfigError
from memfit.predict.scripts.launchers import Job, read_command

ToldBy = Callable[..., dict[str, Any]]
needs_accelerate = pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate")

TELLING = """
import json, os, sys
import torch

names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
told = {"argv": sys.argv[1:], "name": __name__, "launched": "RANK" in os.environ, "get": os.environ.get("RANK")}
told |= {name: os.environ[name] for name in names}
told |= {name: value for name, value in os.environ.items() if name.startswith(("ACCELERATE_", "FSDP_"))}
told["devices"] = torch.cuda.device_count()
print("TOLD", json.dumps(told))
weight = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight])
for _ in range(3):
    weight.sum().backward()
    optimizer.step()
"""

FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 1
num_processes: 4
machine_rank: 0
fsdp_config:
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_reshard_after_forward: false
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TELLING)
    Path("packed").mkdir()
    Path("packed/__init__.py").write_text("import torch\nassert torch.cuda.is_available()\n")
    Path("packed/train.py").write_text(TELLING)
    Path("fsdp.yaml").write_text(FSDP)
    Path("hosts").write_text("a slots=8\n# spare\nb slots=4\n")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    for name in ("packed", "packed.train", "entries"):  # each test imports its own
        sys.modules.pop(name, None)


@pytest.fixture
def told_by(folder: Path, capfd: pytest.CaptureFixture[str]) -> ToldBy:
    """What the script in the folder was told by whoever started it."""

    def run(*words: str) -> dict[str, Any]:
        assert main(["run", "--json", *words]) == 0
        line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("TOLD "))
        found: dict[str, Any] = json.loads(line.removeprefix("TOLD "))
        return found

    return run


def ranks(job: Job) -> tuple[int, int, int, bool]:
    return job.world.world_size, job.world.rank, job.world.local_world_size, job.world.has_launcher


# -- what is read ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "kind", "name", "arguments"),
    [
        ("train.py --lr 1", "script", "train.py", ("--lr", "1")),
        ("python train.py -u", "script", "train.py", ("-u",)),
        ("python3.11 -u -X dev -W ignore -Xutf8 -OB train.py", "script", "train.py", ()),
        ("-m packed.train --lr 1", "module", "packed.train", ("--lr", "1")),
        ("python -um packed.train -m", "module", "packed.train", ("-m",)),
        ("torchrun train.py --nproc-per-node", "script", "train.py", ("--nproc-per-node",)),
        ("torchrun -m packed.train x", "module", "packed.train", ("x",)),
        ("python -m torch.distributed.run --standalone train.py", "script", "train.py", ()),
        ("python -m torch.distributed.launch train.py", "script", "train.py", ("--local-rank=0",)),
        ("python -m torch.distributed.launch --use-env train.py", "script", "train.py", ()),
    ],
)
def test_the_program_and_its_arguments(words: str, kind: str, name: str, arguments: tuple[str, ...], folder: Path):
    program = read_command(words.split()).program
    assert (program.kind, program.name, program.arguments) == (kind, name, arguments)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train.py", (1, 0, 1, False)),
        ("python train.py", (1, 0, 1, False)),
        ("torchrun train.py", (1, 0, 1, True)),
        ("torchrun --nproc-per-node 8 train.py", (8, 0, 8, True)),
        ("torchrun --nproc_per_node=4 --nnodes 2 --rdzv-backend c10d --rdzv-endpoint host:1 train.py", (8, 0, 4, True)),
        ("torchrun --nproc-per-node 4 --nnodes 2 --node-rank 1 train.py", (8, 4, 4, True)),
        ("torchrun --nproc-per-node 4 --nnodes 2:3 train.py", (8, 0, 4, True)),
    ],
)
def test_processes_are_what_the_launcher_says(words: str, expected: tuple, folder: Path):
    assert ranks(read_command(words.split())) == expected


def test_a_job_that_grows_is_named(folder: Path):
    assert not read_command(["torchrun", "--nnodes", "2", "train.py"]).notes
    assert "--nnodes 2:3 was taken to be 2" in read_command(["torchrun", "--nnodes", "2:3", "train.py"]).notes[0]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("", "name what to run"),
        ("none.py", "there is no script none.py"),
        ("python none.py", "there is no script none.py"),
        ("python", "name a script after python"),
        ("python -c pass", "takes no python -c"),
        ("-m", "name a module"),
        ("-m packs.train", "there is no module packs.train"),
        ("torchrun --bogus train.py", "torchrun: unrecognized arguments: --bogus"),
        ("torchrun --nproc-per-node gpu train.py", "--nproc-per-node gpu"),
        ("torchrun --nproc-per-node many train.py", "--nproc-per-node many"),
        ("deepspeed --autotuning run train.py", "without it"),
        ("deepspeed --hostfile none train.py", "there is no hostfile none"),
        ("deepspeed --num_nodes 2 train.py", "hostfile, and there is none"),
        ("deepspeed --hostfile hosts --node_rank 2 train.py", "there are 2 nodes"),
        ("deepspeed --hostfile hosts --exclude a@b train.py", "no GPU is left"),
        ("deepspeed --include a:x train.py", "is not like worker-0"),
        ("deepspeed --hostfile hosts --include c train.py", "there is no host c"),
        ("deepspeed --num_gpus 2 --include a train.py", "do not go together"),
        ("mpirun -n 2 python train.py", "--nproc"),
        ("bash train.sh", "Python programs"),
        ("ls", "ls is not a Python program"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_a_reason(words: str, reason: str, folder: Path):
    with pytest.raises(ConfigError, match=reason):
        read_command(words.split())


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("deepspeed train.py", (1, 0, 1, True)),
        ("deepspeed --num_gpus 8 train.py", (8, 0, 8, True)),
        ("deepspeed --include localhost:0,3 train.py", (2, 0, 2, True)),
        ("python -m deepspeed.launcher.runner --num_gpus=2 --master_port 1 train.py", (2, 0, 2, True)),
        ("deepspeed --hostfile hosts train.py", (12, 0, 8, True)),
        ("deepspeed --hostfile hosts --no_ssh --node_rank 1 train.py", (12, 8, 4, True)),
        ("deepspeed --hostfile hosts --num_nodes 1 --num_gpus 2 train.py", (2, 0, 2, True)),
        ("deepspeed --hostfile hosts --include b:1,2@a:0 train.py", (3, 0, 1, True)),
        ("deepspeed --hostfile hosts --exclude a:0,1@b train.py", (6, 0, 6, True)),
    ],
)
def test_deepspeeds_processes(words: str, expected: tuple, folder: Path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = read_command(words.split())
    assert ranks(job) == expected
    assert any("one was assumed" in note for note in job.notes) == (expected[0] == 1)


def test_what_deepspeeds_launcher_gives_a_script(folder: Path, monkeypatch):
    job = read_command(["deepspeed", "--hostfile", "hosts", "train.py", "--lr", "1"])
    assert job.program.arguments == ("--local_rank=0", "--lr", "1")
    assert job.environment == {"CROSS_RANK": "0", "CROSS_SIZE": "2", "LOCAL_SIZE": "8"}
    assert read_command(["deepspeed", "--no_local_rank", "train.py", "--lr", "1"], 2).program.arguments == ("--lr", "1")
    assert read_command(["deepspeed", "--module", "packed.train"], 2).program.kind == "module"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6")
    assert ranks(read_command(["deepspeed", "train.py"])) == (3, 0, 3, True)
    with pytest.raises(ConfigError, match="--nproc 8 contradicts deepspeed, which starts 3 processes"):
        read_command(["deepspeed", "train.py"], 8)


def test_nproc_must_not_contradict_the_launcher(folder: Path):
    assert ranks(read_command(["torchrun", "--nproc-per-node", "4", "train.py"], 4)) == (4, 0, 4, True)
    assert ranks(read_command(["torchrun", "--nproc-per-node", "gpu", "--nnodes", "2", "train.py"], 16)) == (16, 0, 8, True)
    with pytest.raises(ConfigError, match="--nproc 8 contradicts torchrun, which starts 4 processes"):
        read_command(["torchrun", "--nproc-per-node", "4", "train.py"], 8)
    with pytest.raises(ConfigError, match="at least 1"):
        read_command(["train.py"], 0)


def test_a_script_of_ones_own_may_have_a_launchers_name(folder: Path):
    Path("accelerate.py").write_text(TELLING)
    assert read_command(["./accelerate.py"]).program.name == "./accelerate.py"


# -- accelerate ------------------------------------------------------------------------------------------------------------------


@needs_accelerate
def test_accelerates_config_file(folder: Path):
    job = read_command(["accelerate", "launch", "--config_file", "fsdp.yaml", "train.py", "--lr", "1"])
    assert ranks(job) == (4, 0, 4, True)
    assert job.program.arguments == ("--lr", "1")
    expected = {"ACCELERATE_USE_FSDP": "true", "ACCELERATE_MIXED_PRECISION": "bf16", "FSDP_VERSION": "2"}
    expected |= {"FSDP_RESHARD_AFTER_FORWARD": "false", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
    assert expected.items() <= job.environment.items()


@needs_accelerate
def test_accelerates_flags_come_before_its_config_file(folder: Path):
    words = "--config_file fsdp.yaml --num_processes 16 --num_machines 2 --main_process_ip a --mixed_precision fp16 train.py"
    job = read_command(["accelerate", "launch", *words.split()])
    assert ranks(job) == (16, 0, 8, True)
    assert job.environment["ACCELERATE_MIXED_PRECISION"] == "fp16"


@needs_accelerate
@pytest.mark.parametrize(
    ("words", "nproc", "expected"),
    [
        ("accelerate launch train.py", None, (1, 0, 1, False)),
        ("accelerate launch train.py", 8, (8, 0, 8, True)),
        ("accelerate launch --num_processes 2 train.py", None, (2, 0, 2, True)),
        ("accelerate launch --use_fsdp --num_processes 1 train.py", None, (1, 0, 1, True)),
        ("python -m accelerate.commands.launch --num_processes 2 -m packed.train", None, (2, 0, 2, True)),
    ],
)
def test_accelerates_processes(words: str, nproc: int | None, expected: tuple, folder: Path, monkeypatch):
    monkeypatch.setattr("accelerate.commands.config.config_args.default_config_file", "none.yaml")
    monkeypatch.setattr("accelerate.commands.launch.default_config_file", "none.yaml")
    job = read_command(words.split(), nproc)
    assert ranks(job) == expected
    assert any("one was assumed" in note for note in job.notes) == (expected[0] == 1 and "num_processes" not in words)


@needs_accelerate
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("accelerate launch --config_file none.yaml train.py", "none.yaml"),
        ("accelerate launch --config_file fsdp.yaml none.py", "there is no script none.py"),
        ("accelerate launch --bogus train.py", "accelerate launch: "),
        ("accelerate env", "accelerate launch"),
    ],
)
def test_what_accelerate_refuses(words: str, reason: str, folder: Path):
    with pytest.raises(ConfigError, match=reason):
        read_command(words.split())


@needs_accelerate
def test_accelerates_environment_reaches_the_script(told_by: ToldBy):
    told = told_by("accelerate", "launch", "--config_file", "fsdp.yaml", "train.py", "--lr", "1")
    assert told["argv"] == ["--lr", "1"]
    assert (told["WORLD_SIZE"], told["devices"], told["FSDP_VERSION"], told["ACCELERATE_MIXED_PRECISION"]) == ("4", 4, "2", "bf16")
    assert "ACCELERATE_USE_FSDP" not in os.environ


# -- what runs -------------------------------------------------------------------------------------------------------------------


def test_a_module_runs_as_main(told_by: ToldBy):
    told = told_by("-m", "packed.train", "--json", "-m")
    assert (told["argv"], told["name"]) == (["--json", "-m"], "__main__")


def test_a_launched_process_is_told_who_it_is(told_by: ToldBy):
    told = told_by("torchrun", "--nproc-per-node", "4", "--nnodes", "2", "--node-rank", "1", "train.py")
    assert (told["RANK"], told["LOCAL_RANK"], told["WORLD_SIZE"], told["LOCAL_WORLD_SIZE"]) == ("4", "0", "8", "4")
    assert (told["launched"], told["devices"]) == (True, 4)


def test_without_a_launcher_only_who_insists_is_answered(told_by: ToldBy):
    told = told_by("train.py")
    assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_PORT"]) == ("0", "1", "29500")
    assert (told["launched"], told["get"]) == (False, None)
    assert told_by("torchrun", "train.py")["launched"]
    assert told_by("--nproc", "1", "train.py")["launched"]
    assert "RANK" not in os.environ


def test_a_console_script_runs_here(folder: Path, told_by: ToldBy, monkeypatch: pytest.MonkeyPatch):
    Path("bin").mkdir()
    Path("bin/trainer").write_text("#!/usr/bin/env python\n")
    Path("bin/trainer").chmod(0o755)
    Path("entries.py").write_text(
        f"def main():\n    import runpy\n    runpy.run_path({str(folder / 'train.py')!r}, run_name='entry')\n"
    )
    entry = importlib.metadata.EntryPoint("trainer", "entries:main", "console_scripts")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group, name: [entry] if name == "trainer" else [])
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(folder))
    told = told_by("trainer", "pretrain", "--steps", "9")
    assert told["argv"] == ["pretrain", "--steps", "9"]


def test_python_itself_can_be_asked_for_memfit():
    done = subprocess.run([sys.executable, "-m", "memfit", "--version"], capture_output=True, text=True)
    assert done.stdout.startswith("memfit ")
