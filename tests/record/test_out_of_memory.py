"""``memfit.track(..., on_oom=...)``: the ledger is written, the error goes on as it was."""

import os
import traceback
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import memfit
from memfit.errors import ConfigError
from memfit.explain import explain
from memfit.ledger import Category, Failure, Ledger
from memfit.record.out_of_memory import describe_failure, read_message
from memfit.units import GIB, MIB

MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.37 GiB. GPU 0 has a total capacity of 39.49 GiB of which 1.02 GiB is free. Including "
    "non-PyTorch memory, this process has 38.46 GiB memory in use. 32.00 GiB allowed; Of the allocated memory 31.40 GiB is "
    "allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
    "try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
)

_LIBRARY = torch.library.Library("memfit_tests", "DEF")
_LIBRARY.define("run_out(Tensor x) -> Tensor")


@torch.library.impl(_LIBRARY, "run_out", "CPU")
def _run_out(x: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError(MESSAGE)


class Model(nn.Module):
    """Runs out of memory in the third call of its forward, in an operator, with an activation alive."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        hidden = self.layer(x)
        return torch.ops.memfit_tests.run_out(hidden) if self.calls == 3 else hidden


def train(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_ledger_up_to_the_error_is_written(tmp_path: Path):
    with pytest.raises(torch.OutOfMemoryError), memfit.track(on_oom=tmp_path / "oom.memfit") as tracker:
        train(Model())
    written = Ledger.load(tmp_path / "oom.memfit").check()
    failure = written.info.failure
    assert written.info.problem == "out of memory: CUDA out of memory. Tried to allocate 1.37 GiB."
    assert (failure.op, failure.device, failure.message) == ("memfit_tests.run_out.default", "cuda:0", MESSAGE)
    assert len(written.step_starts) == 3
    assert int(written.events.time_ns.max()) <= failure.time_ns
    # Modules were left on the way out: tracker.ledger knows that, the ledger of the failure does not.
    held = int(written.deltas[written.categories[written.events.subject] == Category.ACTIVATION].sum())
    assert held == 4 * 8 * 4
    assert tracker.ledger.info.failure == failure
    assert len(tracker.ledger.events) > len(written.events)
    assert (written.scope_exit == len(written.events)).any()


def test_the_error_is_the_same_object_with_the_same_traceback(tmp_path: Path):
    error, raised = torch.OutOfMemoryError(MESSAGE), []

    def work() -> None:
        raise error

    try:
        work()
    except torch.OutOfMemoryError:
        raised = traceback.extract_tb(error.__traceback__)
    error.__traceback__ = None
    with pytest.raises(torch.OutOfMemoryError) as caught, memfit.track(on_oom=tmp_path / "oom.memfit"):
        work()
    assert caught.value is error
    assert error.__cause__ is None
    assert error.__context__ is None
    assert [frame.name for frame in traceback.extract_tb(error.__traceback__)][-1] == raised[-1].name == "work"
    assert (tmp_path / "oom.memfit").exists()


def test_other_errors_write_nothing(tmp_path: Path):
    with pytest.raises(RuntimeError, match="other"), memfit.track(on_oom=tmp_path / "oom.memfit") as tracker:
        raise RuntimeError("other")
    assert not (tmp_path / "oom.memfit").exists()
    assert tracker.ledger.info.complete


def test_a_ledger_that_cannot_be_written_does_not_replace_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Ledger, "save", full)
    with (
        pytest.warns(RuntimeWarning, match="could not be written"),
        pytest.raises(torch.OutOfMemoryError),
        memfit.track(on_oom=tmp_path / "x.memfit"),
    ):
        train(Model())


def test_warnings_as_errors_do_not_replace_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(Ledger, "save", lambda *args: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(torch.OutOfMemoryError), memfit.track(on_oom=tmp_path / "x.memfit"):
            train(Model())
    assert "could not be written" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["nowhere/oom.memfit", "."])
def test_a_path_that_cannot_be_written_to_is_refused_at_once(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cannot write"):
        memfit.track(on_oom=path)


def test_with_save_to_both_files_know_of_it(tmp_path: Path):
    with pytest.raises(torch.OutOfMemoryError), memfit.track(save_to=tmp_path / "run.memfit", on_oom=tmp_path / "oom.memfit"):
        train(Model())
    run, oom = Ledger.load(tmp_path / "run.memfit"), Ledger.load(tmp_path / "oom.memfit")
    assert run.info == oom.info
    assert explain(run).holdings == explain(oom).holdings


def test_a_run_that_goes_on_after_all_has_not_failed(tmp_path: Path):
    model, tracker = Model(), memfit.track(on_oom=tmp_path / "oom.memfit")
    with pytest.raises(torch.OutOfMemoryError), tracker:
        train(model)
    with tracker:
        train(model, steps=1)
    assert tracker.ledger.info.complete
    assert not tracker.ledger.info.failure


def test_settings_are_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(os.environ, "PYTORCH_ALLOC_CONF", "max_split_size_mb:32")  # read where the other is not set
    monkeypatch.setitem(os.environ, "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    with pytest.raises(torch.OutOfMemoryError), memfit.track(on_oom=tmp_path / "oom.memfit"):
        train(Model())
    assert Ledger.load(tmp_path / "oom.memfit").info.alloc_conf == "max_split_size_mb:64"


def test_all_of_it_can_be_explained(tmp_path: Path):
    with pytest.raises(torch.OutOfMemoryError), memfit.track(on_oom=tmp_path / "oom.memfit"):
        train(Model())
    found = explain(tmp_path / "oom.memfit")
    assert found.asked == round(1.37 * GIB)
    assert found.capacity == min(round(1.02 * GIB) + round(31.4 * GIB) + 512 * MIB, 32 * GIB)
    assert found.holdings.unknown_bytes == round(31.4 * GIB)  # everything: the model was on the CPU
    assert found.holdings.where == "step 2, forward of (Model)"


# -- messages ----------------------------------------------------------------------------------------------------------------


def test_the_figures_in_a_message():
    found = read_message(MESSAGE)
    assert found.device == "cuda:0"
    assert (found.needed_bytes, found.free_bytes) == (round(1.37 * GIB), round(1.02 * GIB))
    assert (found.total_bytes, found.limit_bytes) == (round(39.49 * GIB), 32 * GIB)
    assert (found.allocated_bytes, found.reserved_bytes) == (round(31.40 * GIB), round(31.40 * GIB) + 512 * MIB)


@pytest.mark.parametrize(
    ("message", "needed", "free"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 3 has a total capacity of 8.00 GiB of which 0 bytes is free.", 2, 0),
        (
            "HIP out of memory. Tried to allocate 20.00 MiB. GPU 3 has a total capacity of 8.00 GiB of which 5.00 MiB is free.",
            20,
            5,
        ),
    ],
)
def test_other_messages(message: str, needed: int, free: int):
    found = read_message(message)
    assert (found.device, found.needed_bytes, found.free_bytes) == ("cuda:3", needed * MIB, free * MIB)
    assert found.reserved_bytes is None


def test_a_message_that_says_nothing():
    assert describe_failure(torch.OutOfMemoryError(), 5, "op") == Failure(message="out of memory", time_ns=5, op="op")


def test_the_devices_own_figures_are_exact(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * GIB, 40 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30 * GIB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: 0.75)
    found = describe_failure(torch.OutOfMemoryError(MESSAGE), 0, "")
    assert (found.free_bytes, found.reserved_bytes, found.limit_bytes) == (3 * GIB, 30 * GIB, 30 * GIB)
    assert (found.capacity, found.allocated_bytes) == (30 * GIB, round(31.40 * GIB))


def test_a_device_that_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(device: str) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    with pytest.raises(torch.OutOfMemoryError), memfit.track(on_oom=tmp_path / "oom.memfit"):
        train(Model())
    assert Ledger.load(tmp_path / "oom.memfit").info.failure.message == MESSAGE
