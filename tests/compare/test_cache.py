"""Cells on disk: found again, and only if nothing has changed."""

import json
import os
from pathlib import Path

import pytest
from helpers.compare_cells import figures

from memfit.compare import cache
from memfit.compare.cache import CellCache
from memfit.reading import hash_file

JOB = {"inputs": {"model": "gpt2", "mesh": ()}, "steps": 3}


def answer(sources: dict | None = None) -> dict:
    return {"figures": json.loads(json.dumps(vars(figures()))), "sources": sources or {}}


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_kept_is_found(tmp_path: Path):
    CellCache(tmp_path).keep(JOB, answer())
    assert CellCache(tmp_path).find(JOB) == figures()
    assert CellCache(tmp_path).find(JOB | {"steps": 2}) is None
    assert CellCache(tmp_path).find({"inputs": {"model": "gpt2-xl"}, "steps": 3}) is None


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\xff", b"[]", b"null", b"{}", b'{"sources": {}, "figures": {"fits": true}}'], ids=str
)
def test_a_torn_file_does_not_count(damage: bytes, tmp_path: Path):
    known = CellCache(tmp_path)
    known.keep(JOB, answer())
    (path,) = files(tmp_path)
    path.write_bytes(damage)
    assert known.find(JOB) is None
    known.keep(JOB, answer())
    assert known.find(JOB) == figures()


@pytest.mark.parametrize(
    "wrong",
    [
        {"smallest_fit": "42"},
        {"smallest_fit": None},
        {"smallest_fit": 1.5},
        {"smallest_fit": 2**70},
        {"peak_reserved": True},
        {"fits": 1},
        {"fits": "no"},
        {"least_gpu": 3},
        {"breakdown": []},
        {"breakdown": {"activation": "much"}},
        {"assumptions": [1]},
        {"assumptions": None},
        {"seconds": float("nan")},
        {"seconds": "1"},
    ],
    ids=str,
)
def test_figures_of_another_type_do_not_count(wrong: dict, tmp_path: Path):
    known, sound = CellCache(tmp_path), answer()
    known.keep(JOB, sound | {"figures": sound["figures"] | wrong})
    assert known.find(JOB) is None


def test_a_source_that_is_a_pipe_does_not_count(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    known = CellCache(tmp_path / "cache")
    known.keep(JOB, answer({str(tmp_path / "pipe"): "0"}))
    assert known.find(JOB) is None


def test_a_changed_source_does_not_count(tmp_path: Path):
    source = tmp_path / "train.py"
    source.write_text("a = 1")
    known = CellCache(tmp_path / "cache")
    known.keep(JOB, answer({str(source): hash_file(source)}))
    assert known.find(JOB) == figures()
    source.write_text("a = 2")
    assert known.find(JOB) is None
    source.unlink()
    assert known.find(JOB) is None


def test_another_version_is_another_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    known = CellCache(tmp_path)
    known.keep(JOB, answer())
    now = cache.versions()
    for name in now:
        monkeypatch.setattr(cache, "versions", lambda name=name: now | {name: "another"})
        assert known.find(JOB) is None
        monkeypatch.undo()
    assert known.find(JOB) == figures()


def test_a_disk_that_takes_nothing_costs_nothing(tmp_path: Path):
    (tmp_path / "cells").write_text("in the way")
    CellCache(tmp_path).keep(JOB, answer())
    assert CellCache(tmp_path).find(JOB) is None


def test_nothing_is_left_behind(tmp_path: Path):
    CellCache(tmp_path).keep(JOB, answer())
    CellCache(tmp_path).keep(JOB, answer())
    assert [path.suffix for path in files(tmp_path)] == [".json"]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.default_folder() == Path("/somewhere/memfit")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.default_folder() == Path.home() / ".cache" / "memfit"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache.open_cache(True) is None
