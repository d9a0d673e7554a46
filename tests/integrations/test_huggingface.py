"""Hugging Face's Trainer, for real, on a model of a few kilobytes."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from memfit.errors import ConfigError
from memfit.integrations import steps as steps_module
from memfit.integrations.huggingface import MemfitCallback
from memfit.ledger import Category, Ledger
from memfit.torch_compat.dispatch import modes_of_this_thread

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore:.*pin_memory.*")


class Reporter(TrainerCallback):
    """Hears what TensorBoard's and W&B's callbacks hear."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, dict[str, float]]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.heard.append((state.global_step, dict(logs)))


def tiny() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    return LlamaForCausalLM(config)


def trainer(folder: Path, *callbacks: TrainerCallback, model: Any = None, accumulate: int = 1) -> Trainer:
    torch.manual_seed(0)
    data = [{"input_ids": torch.randint(0, 64, (8,)), "labels": torch.randint(0, 64, (8,))} for _ in range(32)]
    arguments = TrainingArguments(
        str(folder / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulate,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    )
    return Trainer(model or tiny(), arguments, train_dataset=data, callbacks=list(callbacks))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_chosen_steps_are_in_the_ledger(tmp_path: Path, accumulate: int):
    memory = MemfitCallback(steps=(1, 2), save_to=tmp_path / "run.memfit")
    trainer(tmp_path, memory, accumulate=accumulate).train()
    written = Ledger.load(tmp_path / "run.memfit").check()
    assert written.step_numbers.tolist() == [1, 2], "as the Trainer counts them"
    assert memory.ledger is not None
    assert written.same_as(memory.ledger)
    assert len(written.step_starts) == 2
    assert {Category.PARAMETER, Category.GRADIENT, Category.ACTIVATION, Category.OPTIMIZER_STATE} <= set(written.categories)
    root = written.module_path(int(written.scopes.module[written.scopes.parent == -1][0]))
    forwards = [s for s in range(len(written.scopes)) if written.scopes.parent[s] == -1 and written.scopes.phase[s] == 0]
    assert len(forwards) == 2 * accumulate, root


def test_the_training_is_the_same(tmp_path: Path):
    plain, tracked = trainer(tmp_path), trainer(tmp_path, MemfitCallback(steps=range(4), save_to=tmp_path / "run.memfit"))
    plain.train()
    tracked.train()
    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), tracked.model.parameters(), strict=True))
    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (plain, tracked)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4
    assert len(modes_of_this_thread()) == 0


def test_every_reporter_hears_the_peaks(tmp_path: Path):
    reporter, memory = Reporter(), MemfitCallback(steps=(1,), save_to=tmp_path / "run.memfit")
    trainer(tmp_path, reporter, memory).train()
    heard = [(step, logs) for step, logs in reporter.heard if "memfit/peak_bytes" in logs]
    assert [step for step, _ in heard] == [2]  # the Trainer counts a step when it is over
    logs = heard[0][1]
    parts = [size for name, size in logs.items() if name.startswith("memfit/peak/")]
    assert logs["memfit/peak_bytes"] == sum(parts) > logs["memfit/end_bytes"] > 0


class RunsOut(LlamaForCausalLM):
    def forward(self, input_ids: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 4.00 GiB")
        return super().forward(input_ids, labels=labels, **kwargs)


def test_running_out_of_memory_in_a_chosen_step(tmp_path: Path):
    memory = MemfitCallback(steps=range(4), save_to=tmp_path / "run.memfit", on_oom=tmp_path / "oom.memfit")
    with pytest.raises(torch.OutOfMemoryError):
        trainer(tmp_path, memory, model=RunsOut(tiny().config)).train()
    assert len(modes_of_this_thread()) == 0
    written = Ledger.load(tmp_path / "oom.memfit")
    assert (written.info.failure.needed_bytes, len(written.step_starts)) == (2 * 2**30, 3)


def test_a_step_left_open_by_an_error_is_closed_by_the_next_training(tmp_path: Path):
    """Added later, the callback does not hear of errors."""
    memory, broken = (
        MemfitCallback(steps=range(4), save_to=tmp_path / "run.memfit"),
        trainer(tmp_path, model=RunsOut(tiny().config)),
    )
    broken.add_callback(memory)
    with pytest.raises(torch.OutOfMemoryError):
        broken.train()
    assert len(modes_of_this_thread()) == 1
    again = trainer(tmp_path)
    again.add_callback(memory)
    again.train()
    assert len(modes_of_this_thread()) == 0


def test_our_failure_is_not_the_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps_module, "find_step_peaks", lambda *args: 1 / 0)
    training = trainer(tmp_path, MemfitCallback(steps=range(4), save_to=tmp_path / "run.memfit"))
    with pytest.warns(RuntimeWarning, match="The training goes on without it"):
        training.train()
    assert training.state.global_step == 4
    assert len(modes_of_this_thread()) == 0


def test_nor_is_a_loggers(tmp_path: Path):
    class Broken(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if "memfit/peak_bytes" in logs:
                raise ValueError("no such server")

    training = trainer(tmp_path, Broken(), MemfitCallback(steps=(1,), save_to=tmp_path / "run.memfit"))
    with pytest.warns(RuntimeWarning, match="no such server"):
        training.train()
    assert training.state.global_step == 4


@pytest.mark.parametrize("steps", [(), (-1,), ("2",), (1.5,), (True,)])
def test_steps_that_cannot_be_meant(steps: Any):
    with pytest.raises(ConfigError, match=r"range\(2, 5\)"):
        MemfitCallback(steps=steps)


def test_a_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(ConfigError, match="folder"):
        MemfitCallback(steps=(1,), save_to=tmp_path / "nowhere" / "run.memfit")


def test_warnings_as_errors_do_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(steps_module, "find_step_peaks", lambda *args: 1 / 0)
    recorder = steps_module.StepRecorder((0,), tmp_path / "run.memfit")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        recorder.begin(0, torch.nn.Linear(2, 2), [])
        assert recorder.end() is None
    assert "goes on without it" in capsys.readouterr().err
    assert len(modes_of_this_thread()) == 0
