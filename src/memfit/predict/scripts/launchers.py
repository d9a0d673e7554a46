"""What people type to start a training run, read as their launchers read it.

::

    train.py --lr 3e-4                                  a script
    -m package.module ...                               a module
    litgpt pretrain ...                                 a console script: its entry point is called
    python -u train.py                                  Python, with flags of its own
    torchrun --nproc-per-node 8 train.py ...            one process of eight
    python -m torch.distributed.run ...                 the same
    accelerate launch --config_file c.yaml train.py     with accelerate's environment
    deepspeed --num_gpus 8 train.py ...                 with DeepSpeed's
                    │
                    └──> Job: a Program, its RankInfo, and what the launcher puts into the environment

Each launcher is a row of ``LAUNCHERS``. Those of torch and accelerate parse their own words; DeepSpeed's would import all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from memfit.errors import ConfigError
from memfit.phantom.distributed.environment import RankInfo
from memfit.torch_compat.patches import Patches


@dataclass(frozen=True, kw_only=True)
class Program:
    """What runs in each process."""

    kind: str
    """``script``, ``module`` or ``console script``."""
    name: str
    """The script's path, or the name of the module or of the console script."""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Job:
    """A program, as which of how many processes it runs, and what its launcher puts into the environment."""

    program: Program
    world: RankInfo = RankInfo()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What had to be assumed."""


def read_command(words: Sequence[str], num_processes: int | None = None) -> Job:
    """Reads a command line as typed without memfit. ``num_processes`` is ``--nproc``, which must agree with it."""
    if not words:
        raise ConfigError("name what to run: memfit run train.py, or memfit run torchrun --nproc-per-node 8 train.py")
    if num_processes is not None and num_processes < 1:
        raise ConfigError(f"cannot predict one of {num_processes} processes: --nproc is at least 1")
    if words[0] == "-m":
        return _module(words[1:], num_processes)
    name = Path(words[0]).name
    launcher = next((reader for pattern, reader in LAUNCHERS.items() if re.fullmatch(pattern, name)), None)
    if launcher is not None and not _is_own_script(words[0]):
        return launcher(words[1:], num_processes)
    return _plain(_program(words), num_processes)


def is_launcher(words: Sequence[str]) -> bool:
    """Do the words start the processes of a training run, by torchrun, accelerate or DeepSpeed?"""
    name = Path(words[0]).name
    if name.startswith("python"):
        after = list(words[words.index("-m") + 1 :]) if "-m" in words else []
        return bool(after) and after[0] in LAUNCHER_MODULES and (not after[0].endswith("_cli") or after[1:2] == ["launch"])
    return name in ("torchrun", "accelerate-launch", "deepspeed") or (name == "accelerate" and words[1:2] == ["launch"])


def _plain(program: Program, num_processes: int | None) -> Job:
    """Started without a launcher, or by ``--nproc`` as torchrun would."""
    return Job(program=program, world=RankInfo(world_size=num_processes or 1, is_launched=num_processes is not None))


def _is_own_script(word: str) -> bool:
    return word.endswith(".py") and Path(word).is_file()


# -- programs ------------------------------------------------------------------------------------------------------------------


def _program(words: Sequence[str]) -> Program:
    word, arguments = words[0], tuple(words[1:])
    found = shutil.which(word)
    if Path(word).is_file() and (word.endswith(".py") or found is None):
        return Program(kind="script", name=word, arguments=arguments)
    if found is None:
        raise ConfigError(f"there is no script {word}, and no command of that name")
    if console_script(Path(found).name) is not None:
        return Program(kind="console script", name=Path(found).name, arguments=arguments)
    if _is_python(Path(found)):
        return Program(kind="script", name=found, arguments=arguments)
    raise ConfigError(f"{word} is not a Python program: name the training script that it starts")


def console_script(name: str) -> importlib.metadata.EntryPoint | None:
    """What pip has installed under that name."""
    return next(iter(importlib.metadata.entry_points(group="console_scripts", name=name)), None)


def _is_python(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"python" in first


def _script(words: Sequence[str]) -> Program:
    """What Python runs when it is given this word: a file, whatever its name is, or a folder with ``__main__.py``."""
    if not Path(words[0]).exists():
        raise ConfigError(f"there is no script {words[0]}")
    return Program(kind="script", name=words[0], arguments=tuple(words[1:]))


def _module(words: Sequence[str], num_processes: int | None) -> Job:
    if not words:
        raise ConfigError("name a module after -m")
    if words[0] in LAUNCHER_MODULES:
        return LAUNCHER_MODULES[words[0]](words[1:], num_processes)
    return _plain(_checked_module(words), num_processes)


def _checked_module(words: Sequence[str]) -> Program:
    # Its package alone is looked for: to find a part of it would import it, before there is a GPU to be seen.
    with _current_folder_first():
        package = words[0].partition(".")[0]
        found = package and importlib.util.find_spec(package)
    if not found:
        raise ConfigError(f"there is no module {words[0]} here: is it installed, and is this the right folder?")
    return Program(kind="module", name=words[0], arguments=tuple(words[1:]))


@contextlib.contextmanager
def _current_folder_first() -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


# -- python --------------------------------------------------------------------------------------------------------------------

_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")


def _python(words: Sequence[str], num_processes: int | None) -> Job:
    """Its own flags make no difference to memory, and are passed over."""
    rest = list(words)
    while rest and rest[0].startswith("-"):
        flag = rest.pop(0)
        if flag == "-m":
            return _module(rest, num_processes)
        if flag in ("-", "-c"):
            raise ConfigError(f"memfit run takes no python {flag}: write the program into a file")
        if flag in _WITH_VALUE and rest:
            rest.pop(0)
        elif not flag.startswith("--") and flag[-1] == "m" and flag[1] not in "WX":  # python -um package
            return _module(rest, num_processes)
    if not rest:
        raise ConfigError("name a script after python: memfit run python train.py")
    return _plain(_script(rest), num_processes)


# -- torchrun ------------------------------------------------------------------------------------------------------------------


def _torchrun(words: Sequence[str], num_processes: int | None, *, is_old: bool = False) -> Job:
    from torch.distributed import run

    parser = run.get_args_parser()
    if is_old:  # python -m torch.distributed.launch
        parser.add_argument("--use-env", "--use_env", action="store_true")
    given = _parse(parser, words, "torchrun")
    if is_old and not given.use_env:
        given.training_script_args = ["--local-rank=0", *given.training_script_args]
    return read_torchrun(given, num_processes)


def read_torchrun(given: argparse.Namespace, num_processes: int | None = None) -> Job:
    """Of torchrun's own words, parsed."""
    # 2:4 is a job that grows and shrinks: with the fewest processes, each needs the most memory.
    fewest, _, most = str(given.nnodes).partition(":")
    num_nodes = _number(fewest, "--nnodes")
    notes = (f"torchrun's --nnodes {given.nnodes} was taken to be {num_nodes}",) if most not in ("", fewest) else ()
    per_node = _processes_per_node(str(given.nproc_per_node), num_nodes, num_processes)
    world = _world(per_node, num_nodes, int(given.node_rank or 0), num_processes, "torchrun")
    return Job(program=_launched_program(given, given.training_script_args), world=world, notes=notes)


def _processes_per_node(said: str, num_nodes: int, num_processes: int | None) -> int:
    if said in ("gpu", "auto"):
        if num_processes is None:
            raise ConfigError(
                f"--nproc-per-node {said} is as many as there are GPUs, and here are none: say how many, or give --nproc"
            )
        return max(num_processes // num_nodes, 1)
    return _number(said, "--nproc-per-node")


def _world(per_node: int, num_nodes: int, node: int, num_processes: int | None, launcher: str) -> RankInfo:
    world_size = per_node * num_nodes
    if num_processes not in (None, world_size):
        raise ConfigError(f"--nproc {num_processes} contradicts {launcher}, which starts {world_size} processes: leave --nproc out")
    return RankInfo(world_size=world_size, rank=node * per_node, processes_per_node=per_node, is_launched=True)


def _launched_program(given: argparse.Namespace, arguments: Sequence[str]) -> Program:
    words = [given.training_script, *arguments]
    if given.module:
        return _checked_module(words)
    return _program(words) if given.no_python else _script(words)


def _number(text: str, flag: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{flag} {text}: a number of processes or nodes, at least 1")
    return int(text)


def _parse(parser: argparse.ArgumentParser, words: Sequence[str], launcher: str) -> argparse.Namespace:
    """By the launcher's own parser, with what it refuses told in a line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return parser.parse_args(list(words))
    except SystemExit as leaving:
        if not leaving.code:  # it was asked for its help
            raise
        raise ConfigError(f"{launcher}: {said.getvalue().strip().splitlines()[-1].partition('error: ')[2]}") from leaving


# -- accelerate ----------------------------------------------------------------------------------------------------------------


def _accelerate(words: Sequence[str], num_processes: int | None) -> Job:
    if not words or words[0] != "launch":
        raise ConfigError("memfit run takes accelerate launch; run accelerate's other commands without memfit")
    return _accelerate_launch(words[1:], num_processes)


def _accelerate_launch(words: Sequence[str], num_processes: int | None) -> Job:
    given = _parse(_import_accelerate().launch_command_parser(), words, "accelerate launch")
    notes = _count_processes(given, num_processes)
    way = _way_of_launching(given)
    if way not in ("simple_launcher", "multi_gpu_launcher", "deepspeed_launcher"):
        raise ConfigError("accelerate launch: the config is for TPUs or for SageMaker, and memfit predicts GPUs")
    is_launched = way != "simple_launcher"
    if is_launched:
        num_nodes = int(given.num_machines or 1)
        per_node = max(int(given.num_processes or 1) // num_nodes, 1)
        world = _world(per_node, num_nodes, int(given.machine_rank or 0), num_processes, "accelerate launch")
    else:
        _world(1, 1, 0, num_processes, "accelerate launch")
        world = RankInfo()
    environment = _accelerate_environment(given, way)
    program = _launched_program(given, given.training_script_args)
    return Job(program=program, world=world, environment=environment, notes=notes)


def _way_of_launching(given: argparse.Namespace) -> str:
    """Which of accelerate's launchers it would call; ``given`` is then what it would give it, its config file read."""
    launch, called = _import_accelerate(), [""]
    patches = Patches("memfit run").because("which of accelerate's launchers is called")
    try:
        for name in [name for name in vars(launch) if name.endswith("_launcher")]:
            patches.replace(launch, name, lambda *args, name=name: called.append(name))
        launch.launch_command(given)
    except (ValueError, OSError) as error:
        raise ConfigError(f"accelerate launch: {error}") from error
    finally:
        patches.undo()
    return called[-1]


def _count_processes(given: argparse.Namespace, num_processes: int | None) -> tuple[str, ...]:
    """Without a number of processes, accelerate counts the machine's GPUs, and here there are none."""
    from accelerate.commands.config.config_args import default_config_file

    if given.config_file is not None or os.path.isfile(default_config_file):
        return ()
    notes: tuple[str, ...] = ()
    if given.num_processes is None:
        given.num_processes = num_processes or 1
        if num_processes is None:
            notes = ("accelerate launch starts one process for each GPU of a machine: one was assumed; see its --num_processes",)
    if given.num_processes > 1 and not (given.cpu or given.tpu or given.use_deepspeed or given.use_fsdp or given.use_megatron_lm):
        given.multi_gpu = True
    given.num_machines = given.num_machines or 1
    given.mixed_precision = given.mixed_precision or "no"
    given.dynamo_backend = given.dynamo_backend or "no"
    return notes


def _accelerate_environment(given: argparse.Namespace, way: str) -> dict[str, str]:
    """The variables that accelerate sets for its processes, as it makes them itself."""
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    if way != "simple_launcher":
        given.main_process_port, given.machine_rank = 0, 0  # no port of this machine is used
    try:
        if way == "multi_gpu_launcher":
            made = prepare_multi_gpu_env(given)
        elif way == "deepspeed_launcher":
            made = prepare_deepspeed_cmd_env(given)[1]
        else:
            made = prepare_simple_launcher_cmd_env(given)[1]
    except (ValueError, RuntimeError, AssertionError) as error:
        raise ConfigError(f"accelerate launch: {error}") from error
    return {name: value for name, value in made.items() if os.environ.get(name) != value}


def _import_accelerate() -> Any:
    try:
        from accelerate.commands import launch
    except ImportError as error:
        raise ConfigError(f"accelerate launch needs accelerate, which cannot be imported here: {error}") from error
    return launch


# -- deepspeed -----------------------------------------------------------------------------------------------------------------
#
# Facts: deepspeed/launcher/runner.py and launch.py of DeepSpeed 0.19. Hosts are named in a file ("worker-0 slots=8");
# without one there is this machine, with as many GPUs as --num_gpus, --include or CUDA_VISIBLE_DEVICES say.

_HOSTFILE: Final = "/job/hostfile"
_HOST: Final = re.compile(r"(\S+)\s+slots=(\d+)")
_DEEPSPEED_FLAGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "no_python, no_local_rank, no_ssh, no_ssh_check, force_multi, save_pid, bind_cores_to_rank": {"action": "store_true"},
    "num_nodes, node_rank": {"type": int, "default": -1},
    "master_port, master_addr, launcher, launcher_args, enable_each_rank_log, autotuning, bind_core_list, ssh_port, venv_script, "
    "log_level": {"default": ""},
}


def _deepspeed(words: Sequence[str], num_processes: int | None) -> Job:
    given = _parse(_deepspeed_parser(), words, "deepspeed")
    if given.autotuning:
        raise ConfigError("deepspeed --autotuning measures many runs: predict one of them, without it")
    hosts, notes = _deepspeed_hosts(given, num_processes)
    node = max(given.node_rank, 0)
    if node >= len(hosts):
        raise ConfigError(f"deepspeed --node_rank {node}: there are {len(hosts)} nodes")
    if num_processes not in (None, sum(hosts)):
        raise ConfigError(f"--nproc {num_processes} contradicts deepspeed, which starts {sum(hosts)} processes: leave --nproc out")
    world = RankInfo(world_size=sum(hosts), rank=sum(hosts[:node]), processes_per_node=hosts[node], is_launched=True)
    arguments = given.training_script_args if given.no_local_rank else ["--local_rank=0", *given.training_script_args]
    environment = {"CROSS_RANK": str(node), "CROSS_SIZE": str(len(hosts)), "LOCAL_SIZE": str(hosts[node])}
    return Job(program=_launched_program(given, arguments), world=world, environment=environment, notes=notes)


def _deepspeed_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="deepspeed")
    parser.add_argument("-H", "--hostfile", default=_HOSTFILE)
    parser.add_argument("-i", "--include", default="")
    parser.add_argument("-e", "--exclude", default="")
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("--num_gpus", "--num_accelerators", type=int, default=-1)
    parser.add_argument("--module", action="store_true")
    for names, options in _DEEPSPEED_FLAGS.items():
        for name in names.split(", "):
            parser.add_argument(f"--{name}", **options)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _deepspeed_hosts(given: argparse.Namespace, num_processes: int | None) -> tuple[list[int], tuple[str, ...]]:
    """How many processes start on each node, and what had to be assumed."""
    if (given.include or given.exclude) and (given.num_nodes >= 0 or given.num_gpus >= 0):
        raise ConfigError("deepspeed: --num_nodes and --num_gpus do not go together with --include and --exclude")
    slots, notes = _deepspeed_slots(given, num_processes)
    chosen = {host: {*range(count)} for host, count in slots.items()}
    named = _nodes_in(given.include or given.exclude)
    if unknown := named.keys() - chosen.keys():
        raise ConfigError(f"deepspeed: there is no host {min(unknown)}")
    if given.include:
        chosen = {host: named[host] or numbers for host, numbers in chosen.items() if host in named}
    else:
        for host, numbers in named.items():
            chosen[host] -= numbers or chosen[host]
    counts = [len(numbers) for numbers in chosen.values() if numbers]
    counts = counts[: given.num_nodes] if given.num_nodes > 0 else counts
    counts = [given.num_gpus] * len(counts) if given.num_gpus > 0 else counts
    if not counts:
        raise ConfigError("deepspeed: no GPU is left to run on")
    return counts, notes


def _deepspeed_slots(given: argparse.Namespace, num_processes: int | None) -> tuple[dict[str, int], tuple[str, ...]]:
    """The GPUs of each host that there is."""
    if Path(given.hostfile).is_file():
        lines = [line.partition("#")[0].strip() for line in Path(given.hostfile).read_text().splitlines()]
        found = [_HOST.match(line) for line in lines if line]
        if not found or not all(found):
            raise ConfigError(f"deepspeed: {given.hostfile} is not a hostfile: its lines are like worker-0 slots=8")
        return {host[1]: int(host[2]) for host in found if host}, ()
    if given.hostfile != _HOSTFILE:
        raise ConfigError(f"deepspeed: there is no hostfile {given.hostfile}")
    if given.num_nodes > 1:
        raise ConfigError("deepspeed --num_nodes: the nodes are named in a hostfile, and there is none")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if given.num_gpus > 0 or given.include:
        return {"localhost": max(given.num_gpus, 1)}, ()
    if visible:
        return {"localhost": len(visible.split(","))}, ()
    note = "deepspeed starts one process for each GPU of a machine: one was assumed; see its --num_gpus"
    return {"localhost": num_processes or 1}, () if num_processes else (note,)


def _nodes_in(filter_: str) -> dict[str, set[int]]:
    """Of ``worker-0@worker-1:0,2``: the numbers of the GPUs of each host, none where all are meant."""
    parts = [node.partition(":") for node in filter_.split("@") if node]
    if any(numbers and not all(number.isdecimal() for number in numbers.split(",")) for _, _, numbers in parts):
        raise ConfigError(f"deepspeed: {filter_} is not like worker-0@worker-1:0,2")
    return {host: {int(number) for number in numbers.split(",") if number} for host, _, numbers in parts}


# -- those that cannot be followed -----------------------------------------------------------------------------------------------


def _by_nproc(words: Sequence[str], num_processes: int | None) -> Job:
    raise ConfigError("memfit predicts one process itself: name the training script, and the number of processes with --nproc")


def _shell(words: Sequence[str], num_processes: int | None) -> Job:
    raise ConfigError("memfit runs Python programs: name the training command that the shell script runs")


Reader = Callable[[Sequence[str], "int | None"], Job]

LAUNCHERS: Final[Mapping[str, Reader]] = {
    r"python[0-9.]*": _python,
    r"torchrun": _torchrun,
    r"accelerate": _accelerate,
    r"accelerate-launch": _accelerate_launch,
    r"deepspeed": _deepspeed,
    r"mpirun|mpiexec|srun|horovodrun": _by_nproc,
    r"(ba|z|da)?sh": _shell,
}
"""By name, a pattern: how the words after it are read."""


def _old_torchrun(words: Sequence[str], num_processes: int | None) -> Job:
    return _torchrun(words, num_processes, is_old=True)


LAUNCHER_MODULES: Final[Mapping[str, Reader]] = {
    "torch.distributed.run": _torchrun,
    "torch.distributed.launch": _old_torchrun,
    "accelerate.commands.launch": _accelerate_launch,
    "accelerate.commands.accelerate_cli": _accelerate,
    "deepspeed.launcher.runner": _deepspeed,
}
"""The same, after ``python -m``."""
