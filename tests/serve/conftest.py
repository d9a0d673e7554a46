"""A server of its own folder, in a thread, with workers that answer at once."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT
from helpers.hanging import HANGS_AFTER
from helpers.report_runs import HOSTILE

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from memfit.ledger import RunInfo
from memfit.testing import ledger

TOKEN = "a token for tests"
QUICK = (sys.executable, str(ROOT / "tests" / "helpers" / "quick_answers.py"))


@dataclass
class Served:
    """A running server, and requests to it."""

    folder: Path
    port: int
    server: Any
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={TOKEN.replace(' ', '%20')}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        """The status, and JSON where it is such. ``Token=""`` leaves the token out."""
        given = {"X-Memfit-Token": TOKEN} | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANGS_AFTER)
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, {name: value for name, value in given.items() if value})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(text) if is_json else text

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self.ask("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        return self.ask("POST", path, body, **headers)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With ledgers, a config, a script and a function in it; names in it are as hostile as they can be."""
    found = tmp_path_factory.mktemp("served")
    text = "alloc 4MiB parameter w on cuda:0; step; alloc {}MiB x on cuda:0; free x; step"
    for name, size in (("run.memfit", 4), ("other.memfit", 8)):
        made = ledger(text.format(size))
        object.__setattr__(made, "info", RunInfo(source="predicted", gpu="T4", asked={"model": HOSTILE, "gpu": "T4"}))
        made.save(found / name)
    (found / "broken.memfit").write_bytes(b"no ledger")
    (found / "<img src=x onerror=alert(1)>.memfit").write_bytes((found / "run.memfit").read_bytes())
    (found / "train.py").write_text("def build():\n    def step():\n        pass\n    return step\n")
    (found / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 16}))
    return found


@pytest.fixture
def quick_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that answer at once."""
    from memfit.serve import desk

    monkeypatch.setattr(desk, "COMMAND", QUICK)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), str(ROOT / "src"), *sys.path]))


@pytest.fixture
def serve(folder: Path, quick_workers: None) -> Iterator[Callable[[], Served]]:
    """Starts a server; ``served`` is one that is started."""
    import uvicorn

    from memfit.serve.app import Server, make_app
    from memfit.serve.guard import Door

    started: list[Served] = []

    def start() -> Served:
        listening = socket.socket()
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        server = Server(folder, None, num_lanes=1)
        running = uvicorn.Server(uvicorn.Config(make_app(server, Door(token=TOKEN, port=port)), log_level="error", lifespan="on"))
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()

        def stop() -> None:
            running.should_exit = True
            thread.join(HANGS_AFTER)

        started.append(Served(folder, port, server, stop))
        assert started[-1].get("/serve.css")[0] == 200, "it has started"
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def served(serve: Callable[[], Served]) -> Served:
    return serve()
