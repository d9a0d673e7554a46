"""What shells complete is what the parser reads."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from memfit.cli import COMMANDS, build_parser
from memfit.cli.completion import SCRIPTS, typed_commands

TYPED = typed_commands(build_parser())


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_flags_and_values():
    lines = {
        "memfit pre": "predict",
        "memfit predict --model gpt2 --opt": "--optimizer",
        "memfit predict --gpu H20": "H200",
        "memfit compare --strategy full_shard,shard": "full_shard,shard_grad_op",
        "memfit completion z": "zsh",
        "memfit diff --no-such": "",
    }
    asked = "".join(f"ask {line}\n" for line in lines)
    ask = 'ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _memfit; echo "${COMPREPLY[*]}"; }'
    said = subprocess.run(["bash", "-c", f"{SCRIPTS['bash'](TYPED)}\n{ask}\n{asked}"], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [*lines.values()]


@pytest.mark.parametrize("shell", SCRIPTS)
def test_a_script_can_be_read_by_its_shell_and_has_every_flag(shell: str):
    script = SCRIPTS[shell](TYPED)
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=script, text=True, check=True, capture_output=True)
    assert all(command in script for command in COMMANDS)
    for command in TYPED:
        for flag in command.flags:
            assert all(name.lstrip("-") in script for name in flag.names), (command.name, flag)
            assert all(value in script for value in flag.values)
