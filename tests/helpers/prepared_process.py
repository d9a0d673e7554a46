"""Programs in new processes that need not import torch again: each is a copy of one process that has done so, and nothing else.

::

    run_prepared(code, "--flag") ── a request ──> serve() ── fork ──> the code, as of python -c, with its own folder, environment,
                                                                     standard output and exit
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.hanging import HANGS_AFTER

MEMFIT = "import sys; from memfit.cli import main; sys.exit(main())"
"""The command line."""

SERVER = "from helpers.prepared_process import serve; exec(serve())"


def run_prepared(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What ``python -c code *arguments`` prints, and how it ends."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        job = {
            "code": code,
            "arguments": arguments,
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ),
            "files": [str(file) for file in files],
        }
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        ready, _, _ = select.select([server.stdout], [], [], HANGS_AFTER)
        assert ready, f"waited {HANGS_AFTER} s in vain"
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess([code, *arguments], status, *(file.read_text() for file in files))


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
        job = json.loads(request)
        child = os.fork()
        if child == 0:
            _become(job)
            return job["code"]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, f"{status}\n".encode())
    return ""


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
