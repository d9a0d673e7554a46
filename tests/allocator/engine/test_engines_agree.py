"""The engine in C does exactly what the one in Python does."""

import ctypes
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from helpers.allocator_requests import CAPACITIES, TOTAL_MEMORY, TRUTH, asked, random_requests, random_settings
from hypothesis import given, settings

from memfit.allocator import AllocatorSettings, load_requests, parse_alloc_conf, replay
from memfit.allocator.engine import Outcome, Prepared, Rules, compiling, native, prepare, python


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("engine") / "_engine.so"
    problem = compiling.compile_engine(library)
    if problem:
        pytest.skip(problem)
    loaded = native.load(library)
    assert loaded is not None
    return loaded


def differences(engine: ctypes.CDLL, prepared: Prepared, rules: Rules) -> list[str]:
    one, other = python.run(prepared, rules), native.run(engine, prepared, rules)
    return [field.name for field in fields(Outcome) if not np.array_equal(getattr(one, field.name), getattr(other, field.name))]


@settings(max_examples=300)
@given(random_requests(), random_settings(), CAPACITIES)
def test_on_any_requests(engine, requests, how, capacity):
    assert differences(engine, prepare(requests, how, use_recorded_addresses=False), Rules.of(how, capacity, TOTAL_MEMORY)) == []


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:64"])
@pytest.mark.parametrize("name", ["llama_amp_ckpt", "hf_resnet", "fsdp1_full"])
def test_on_a_real_trace_with_and_without_enough_memory(engine, name: str, conf: str):
    requests, how = load_requests(TRUTH / "traces" / f"trace_{name}.npz"), parse_alloc_conf(conf)
    prepared = prepare(requests, how, use_recorded_addresses=False)
    for share in (None, 0.9, 1.1):
        capacity = share and int(share * requests.recorded_peaks["peak_allocated"])
        assert differences(engine, prepared, Rules.of(how, capacity)) == []


def test_the_comparison_can_fail(engine):
    how = AllocatorSettings()
    prepared = prepare(asked("a 20MiB"), how, use_recorded_addresses=False)
    one = python.run(prepared, Rules.of(how))
    other = native.run(engine, prepared, Rules.of(how, capacity=0))
    assert (one.num_done, other.num_done) == (1, 0)


# -- with and without a library ----------------------------------------------------------------------------------------------


def test_without_a_library_the_engine_in_python_serves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "library", lambda: None)
    assert replay(asked("a 20MiB; free a; b 30MiB")).peak_reserved == 50 * 2**20


def test_a_library_of_another_source_is_not_used(engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "source_digest", lambda: "another")
    assert native.load(Path(engine._name)) is None


def test_what_is_no_library_is_not_used(tmp_path: Path):
    (tmp_path / "_engine.so").write_bytes(b"not a library")
    assert native.load(tmp_path / "_engine.so") is None
    assert native.load(tmp_path / "missing.so") is None


@pytest.mark.parametrize(("compiler", "problem"), [("no-such-compiler", "could not be run"), ("false", "failed")])
def test_a_compiler_that_does_not_work_is_no_error(compiler: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", compiler)
    assert problem in compiling.compile_engine(tmp_path / "_engine.so")


def test_a_checkout_builds_what_is_missing_and_an_installation_does_not(engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(native, "LIBRARY", tmp_path / "_engine.so")
    monkeypatch.setattr(native, "in_checkout", lambda: False)
    assert native.library.__wrapped__() is None
    monkeypatch.setattr(native, "in_checkout", lambda: True)
    assert native.library.__wrapped__() is not None
    assert [path.name for path in tmp_path.iterdir()] == ["_engine.so"]
