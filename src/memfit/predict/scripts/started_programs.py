"""Programs that only start another one: ``trl sft`` calls accelerate's launcher, ``llamafactory-cli train`` runs torchrun.

What they would start is followed in their place: the prediction begins again with it. So is what a program replaces itself with
(``os.exec*``: scripts start themselves again to set variables of the environment). Other programs that a script starts run for
real, outside the prediction; one that is itself in Python, and so could be the training, is named.

::

    torch.distributed.run.run(...)                    torchrun, called as a function
    subprocess: torchrun ... | accelerate launch ...  a launcher
    subprocess: python train.py, with ACCELERATE_...  accelerate's launcher of one process
    os.execv: python train.py                         the program itself, again
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from torch.distributed import run as torchrun

from memfit.errors import ConfigError, PredictionError
from memfit.predict.scripts.launchers import Job, is_launcher, read_command, read_torchrun
from memfit.torch_compat.patches import Patches

_OF_ACCELERATE: Final = "ACCELERATE_"


class AnotherProgram(BaseException):
    """Ends the program from within; no program catches it by accident."""

    def __init__(self, job: Job, *, is_same_process: bool = False) -> None:
        super().__init__(job.program.name)
        self.job = job
        self.is_same_process = is_same_process
        """It keeps its rank, unless it is a launcher."""


class StartedPrograms:
    """Looks at what a program starts."""

    def __init__(self) -> None:
        self._before: dict[str, str] = {}
        self.notes: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._before = dict(os.environ)
        patches = Patches("memfit run").because("a program that only starts another one is left for that one")
        patches.replace(torchrun, "run", self._by_torchrun)
        patches.wrap(subprocess.Popen, "__init__", self._popen)
        patches.wrap(os, "execv", self._exec)  # the others of its family call one of these two
        patches.wrap(os, "execve", self._exec)
        try:
            yield
        finally:
            patches.undo()

    def _by_torchrun(self, given: Any) -> None:
        raise AnotherProgram(self._with_environment(read_torchrun(given), os.environ))

    def _popen(self, original: Callable[..., None]) -> Callable[..., None]:
        def start(process: Any, args: Any, *others: Any, **kwargs: Any) -> None:
            words = [os.fsdecode(word) for word in args] if isinstance(args, (list, tuple)) else []
            self._look_at(words, kwargs.get("env") or os.environ)
            original(process, args, *others, **kwargs)

        return start

    def _exec(self, original: Callable[..., None]) -> Callable[..., None]:
        process = os.getpid()

        def replace_process(path: Any, args: Sequence[Any], env: Mapping[Any, Any] | None = None) -> None:
            given = () if env is None else (env,)
            if os.getpid() != process:  # a fork of the script: another program, as by subprocess
                original(path, args, *given)
                return
            if not os.access(path, os.X_OK):
                original(path, args, *given)  # raises what there is to say
            words = [os.fsdecode(path), *(os.fsdecode(word) for word in list(args)[1:])]
            environment = os.environ if env is None else {os.fsdecode(name): os.fsdecode(value) for name, value in env.items()}
            try:
                job = read_command(words)
            except ConfigError as error:
                what = f"the script replaces itself by another program ({shlex.join(words)}), which cannot be followed"
                raise PredictionError(f"{what}: {error}") from None
            raise AnotherProgram(self._with_environment(job, environment), is_same_process=True)

        return replace_process

    def _look_at(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        if not words:
            return
        by_accelerate = any(name.startswith(_OF_ACCELERATE) and name not in os.environ for name in environment)
        if is_launcher(words) or by_accelerate:
            with suppress(ConfigError):  # what is no training runs for real: accelerate's own questions to the machine, for one
                raise AnotherProgram(self._with_environment(read_command(words), environment))
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        if Path(words[0]).name.startswith("python") and script.endswith(".py"):
            self.notes.append(f"the script started another program, {Path(script).name}, which ran outside the prediction")

    def _with_environment(self, job: Job, environment: Mapping[str, str]) -> Job:
        """With what was put into the environment on the way to it."""
        new = {name: value for name, value in environment.items() if self._before.get(name) != value}
        return replace(job, environment={**new, **job.environment})
