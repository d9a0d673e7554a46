"""Grids that are predicted for real, each cell in a process of its own."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from helpers import compare_cells
from helpers.hanging import HANGS_AFTER, wait_until
from rich.console import Console

import memfit
from memfit.compare.api import predict_cells
from memfit.errors import ConfigError
from memfit.workers.lanes import WorkerLane, died

TRAIN = """
import os, signal, sys
import torch
from sizes import WIDTH

def build(*, layers=2, how="well", batch=4):
    print("noise on stdout", file=sys.stdout)
    if how == "badly":
        raise RuntimeError("the learning rate is sad\\nand long")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "worker killed":
        os.kill(os.getppid(), signal.SIGKILL)
    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)]).cuda()
    x = torch.ones(batch, WIDTH, device="cuda")
    return lambda: model(x).sum().backward()
"""


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "sizes.py").write_text("WIDTH = 256\n")
    return f"{tmp_path}/train.py:build"


def test_a_grid_of_a_function(train: str, tmp_path: Path):
    seen = []

    def progress(cell, done, total):
        seen.append((done, total))

    first = memfit.compare(
        train, layers=[3, 1], how=["well", "badly"], gpu="T4", cache=tmp_path / "cache", jobs=1, progress=progress
    )
    assert [cell.inputs["layers"] for cell in first.cells[:2]] == [1, 3], "the one that needs least comes first"
    assert first.best is first.cells[0]
    assert first.best.figures.peak_allocated >= 2 * 4 * 256 * 256
    assert [cell.error for cell in first.cells[2:]] == ["RuntimeError: the learning rate is sad"] * 2
    assert "in build" in first.cells[2].details
    assert seen == [(done, 4) for done in range(1, 5)]

    again = memfit.compare(train, layers=1, how=["well", "killed", "worker killed"], gpu="T4", cache=tmp_path / "cache", jobs=1)
    assert [cell.cached for cell in again.cells] == [True, False, False], "what was predicted is kept"
    assert again.best.figures == first.best.figures
    assert all(cell.error.startswith("its process was killed") for cell in again.cells[1:])

    (tmp_path / "sizes.py").write_text("WIDTH = 512\n")
    wider = memfit.compare(train, layers=1, how="well", gpu="T4", cache=tmp_path / "cache")
    assert not wider.best.cached, "a file that the function imports has changed"
    assert wider.best.figures.peak_allocated >= 2 * 4 * 512 * 512

    plain = first.to_json()
    assert plain[0]["layers"] == 1
    assert plain[0]["fits"] is True
    assert set(plain[0]) >= {"gpu", "world_size", "peak_allocated", "peak_reserved", "smallest_fit", "fits"}
    assert set(plain[-1]) == {"function", "gpu", "world_size", "layers", "how", "error"}
    rows = list(csv.DictReader(io.StringIO(first.to_csv())))
    assert [row["peak_allocated"] for row in rows[:2]] == [str(cell["peak_allocated"]) for cell in plain[:2]]
    assert rows[-1]["error"]

    console = Console(width=120, file=io.StringIO())
    console.print(first)
    shown = console.file.getvalue()
    assert "train.py:build, on T4" in shown
    assert "Could not be predicted" in shown
    assert "Run it with layers 1, how well on T4" in shown


def test_models_by_name_on_several_gpus(tmp_path: Path):
    settled = {"seq": 64, "strategy": "full_shard", "engine": ["fsdp2", "ddp"], "checkpointing": "full"}
    found = memfit.compare(model="gpt2", gpu=["T4", "H100"], world_size=2, steps=1, cache=tmp_path, jobs=2, **settled)
    assert [(cell.inputs["gpu"], cell.inputs["engine"]) for cell in found.cells if cell.fits] != []
    wrong = [cell for cell in found.cells if cell.figures is None]
    assert [cell.error.partition(":")[0] for cell in wrong] == ["DDP shards nothing", "DDP shards nothing"]
    console = Console(width=140, file=io.StringIO())
    console.print(found)
    shown = console.file.getvalue()
    assert "on T4" in shown
    assert "on H100-80GB" in shown
    assert shown.count("left") == 2, "one row, a verdict for each GPU"
    narrow = Console(width=46, file=io.StringIO())
    narrow.print(found)
    row = next(line for line in narrow.file.getvalue().splitlines() if ("fsdp2" in line and "GiB" in line) or "MiB" in line)
    assert row.split()[-2:] == ["yes", "yes"], "no verdict is cut off"


def test_stopping_keeps_what_is_done_and_leaves_no_process(train: str, tmp_path: Path):
    cache = tmp_path / "cache"
    code = (
        "import pathlib, signal, memfit\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in the background, a shell has it ignored
        f"found = memfit.compare({train!r}, layers=list(range(1, 40)), jobs=1, cache=pathlib.Path({str(cache)!r}), "
        "progress=lambda cell, done, total: print(done, flush=True))\n"
        "print(sum(cell.error.startswith('not predicted') for cell in found.cells), 'were still to come')"
    )
    env = os.environ | {"MEMFIT_TEST": str(tmp_path)}
    comparing = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert comparing.stdout.readline() == "1\n"
    assert len(processes_with(str(tmp_path))) >= 2, "the comparison and its worker"
    comparing.send_signal(signal.SIGINT)
    said, error = comparing.communicate(timeout=HANGS_AFTER)
    assert error == ""
    assert said.splitlines()[-1].endswith("were still to come")
    assert 1 <= len(list(cache.rglob("*.json"))) < 39
    wait_until(lambda: processes_with(str(tmp_path)) == [])


def processes_with(mark: str) -> list[str]:
    """Those whose environment has the mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"MEMFIT_TEST={mark}".encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


def test_a_file_that_compares_when_imported_is_told_so(tmp_path: Path):
    (tmp_path / "train.py").write_text("import memfit\ndef build(): ...\nmemfit.compare(build, gpu='T4')\n")
    found = memfit.compare(f"{tmp_path}/train.py:build", cache=tmp_path / "cache")
    assert "put the call under if __name__ == '__main__'" in found.cells[0].error


def test_functions_that_no_file_defines():
    with pytest.raises(ConfigError, match="define it at the top of a file"):
        memfit.compare(lambda: None)
    with pytest.raises(ConfigError, match=r"write it like train\.py:build"):
        memfit.compare("train:build")
    with pytest.raises(ConfigError, match="at least one"):
        memfit.compare(model="gpt2", jobs=0)


def test_a_function_is_found_in_its_file(tmp_path: Path):
    found = memfit.compare(compare_cells.build_little, cache=tmp_path)
    assert found.best.inputs["function"] == f"{Path(compare_cells.__file__).resolve()}:build_little"


def test_no_cells_start_no_process():
    assert predict_cells((), None, 4, lambda cell, done, total: None) == ()


@pytest.mark.parametrize(
    ("status", "words"),
    [(-signal.SIGKILL, "ran out of memory"), (-signal.SIGSEGV, "died of SIGSEGV"), (3, "status 3 and no answer")],
)
def test_how_a_process_died(status: int, words: str):
    assert words in died(status)


def test_a_lane_that_was_never_started_can_be_stopped_and_then_used():
    lane = WorkerLane()
    lane.stop()
    try:
        assert "RuntimeError" not in lane.answer({"inputs": {}})["error"]
    finally:
        lane.stop()


def test_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text()
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"memfit": memfit}
    exec(snippet, names)
    found = names["comparison"]
    assert json.loads(json.dumps(found.to_json())) == found.to_json(), "nothing that only Python knows"
    assert found.recommended.inputs["checkpointing"] == "none"
    assert len(list(tmp_path.rglob("*.json"))) == 2
