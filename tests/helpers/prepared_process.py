"""Programs in new processes that need not import torch again: each is a copy of one process that has done so, and nothing else.

::

    run_prepared(code, "--flag") ── a request ──> serve() ── fork ──> the code, as of python -c, with its own folder, environment,
    run_ranks(script)                                   └──> fork     standard output and exit
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.hanging import HANGS_AFTER

MEMFIT = "import sys; from memfit.cli import main; sys.exit(main())"
"""The command line."""

SERVER = "from helpers.prepared_process import serve; exec(serve())"


RANK = """
import runpy, sys, torch, warnings
del sys.argv[0]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
warnings.filterwarnings("error", category=UserWarning, module="memfit")
torch.set_num_threads(1)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A script, as a launcher starts it on one of many ranks."""


def run_prepared(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What ``python -c code *arguments`` prints, and how it ends."""
    return _run(code, arguments, cwd or Path.cwd(), [{}])[0]


def run_ranks(script: Path, *arguments: str, world_size: int = 2) -> None:
    """Runs a script on ranks of this machine, as ``torchrun`` does. All end as soon as one has failed; what it said is raised."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(world_size)}
    ranks = [world | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(world_size)]
    done = _run(RANK, (str(script), *arguments), Path.cwd(), ranks)
    failed = [each for each in done if each.returncode > 0] or [each for each in done if each.returncode]
    assert not failed, failed[0].stderr[-4000:]


def _run(
    code: str, arguments: tuple[str, ...], cwd: Path, environments: list[dict[str, str]]
) -> list[subprocess.CompletedProcess[str]]:
    """One process for each of the environments, all at once."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        outputs = [[Path(folder, f"{number}.{name}") for name in ("stdout", "stderr")] for number in range(len(environments))]
        jobs = [
            {
                "code": code,
                "arguments": arguments,
                "cwd": str(cwd),
                "environment": os.environ | environment,
                "files": [str(file) for file in files],
            }
            for environment, files in zip(environments, outputs, strict=True)
        ]
        server.stdin.write(json.dumps(jobs) + "\n")
        server.stdin.flush()
        ready, _, _ = select.select([server.stdout], [], [], HANGS_AFTER)
        assert ready, f"waited {HANGS_AFTER} s in vain"
        statuses = json.loads(server.stdout.readline())
        return [
            subprocess.CompletedProcess([code, *arguments], status, *(file.read_text() for file in files))
            for status, files in zip(statuses, outputs, strict=True)
        ]


@functools.cache
def _server() -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(server.communicate)
    return server


def serve() -> str:
    """Answers requests with exit codes until there are no more; in every copy, gives the code to run."""

    import memfit.cli
    import memfit.predict.api  # noqa: F401

    gc.freeze()
    answers = os.dup(1)
    for request in sys.stdin:
        children: dict[int, int] = {}
        jobs = json.loads(request)
        for number, job in enumerate(jobs):
            child = os.fork()
            if child == 0:
                _become(job)
                return job["code"]
            children[child] = number
        os.write(answers, (json.dumps(_statuses(children)) + "\n").encode())
    return ""


def _statuses(children: dict[int, int]) -> list[int]:
    """How each of the processes ended; where one fails, the others have not long to wait."""
    found = [0] * len(children)
    running = dict(children)
    while running:
        child, status = os.wait()
        found[running.pop(child)] = os.waitstatus_to_exitcode(status)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
    return found


def _become(job: dict) -> None:
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    sys.argv = ["-c", *job["arguments"]]
    for descriptor, (path, flags) in enumerate(
        [(os.devnull, os.O_RDONLY), *((file, os.O_WRONLY | os.O_CREAT) for file in job["files"])]
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
