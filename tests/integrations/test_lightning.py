"""Lightning's Trainer, for real, on a model of a few kilobytes."""

import logging
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers.logger import Logger
from torch import nn

from memfit.integrations import steps as steps_module
from memfit.integrations.lightning import MemfitCallback
from memfit.ledger import Category, Ledger
from memfit.torch_compat.dispatch import modes_of_this_thread

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers.*",
    "ignore:.*smaller than the logging interval.*",
    "ignore:.*GPU available.*",
    "ignore::FutureWarning",
)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Module(pl.LightningModule):
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.net, self.calls, self.fails_at = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)), 0, fails_at

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 4.00 GiB")
        return self.net(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


class Memory(Logger):
    """What TensorBoard's and W&B's loggers look like to Lightning."""

    name, version = "memory", 0

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.heard: list[tuple[Any, dict[str, float]]] = []
        self.fails = fails

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.fails:
            raise ValueError("no such server")
        self.heard.append((step, dict(metrics)))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...


def fit(callback: MemfitCallback, module: Module | None = None, logger: Any = False, **more: Any) -> pl.Trainer:
    trainer = pl.Trainer(
        max_steps=4,
        accelerator="cpu",
        callbacks=[callback],
        logger=logger,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **more,
    )
    trainer.fit(module or Module(), torch.utils.data.DataLoader(torch.ones(64, 8), batch_size=4))
    return trainer


@pytest.mark.parametrize("accumulate", [1, 2])
def test_chosen_steps_are_in_the_ledger(tmp_path: Path, accumulate: int):
    fit(MemfitCallback(steps=(1, 3), save_to=tmp_path / "run.memfit"), accumulate_grad_batches=accumulate)
    written = Ledger.load(tmp_path / "run.memfit").check()
    assert len(written.step_starts) == 2
    assert {Category.PARAMETER, Category.GRADIENT, Category.ACTIVATION, Category.OPTIMIZER_STATE} <= set(written.categories)
    calls = [s for s in range(len(written.scopes)) if written.module_path(written.scopes.module[s]).endswith("net")]
    forwards = [s for s in calls if written.scopes.phase[s] == 0]
    assert len(forwards) == 2 * accumulate
    assert len(modes_of_this_thread()) == 0


def test_loggers_hear_the_peaks(tmp_path: Path):
    logger = Memory()
    fit(MemfitCallback(steps=(1, 3), save_to=tmp_path / "run.memfit"), logger=logger)
    heard = [(step, metrics) for step, metrics in logger.heard if "memfit/peak_bytes" in metrics]
    assert [step for step, _ in heard] == [1, 3]
    assert all(metrics["memfit/peak_bytes"] > metrics["memfit/end_bytes"] > 0 for _, metrics in heard)


def test_running_out_of_memory_in_a_chosen_step(tmp_path: Path):
    memory = MemfitCallback(steps=range(4), save_to=tmp_path / "run.memfit", on_oom=tmp_path / "oom.memfit")
    with pytest.raises(torch.OutOfMemoryError):
        fit(memory, Module(fails_at=3))
    assert Ledger.load(tmp_path / "oom.memfit").info.failure.needed_bytes == 2 * 2**30
    assert len(modes_of_this_thread()) == 0


def test_our_failure_is_not_the_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(steps_module, "find_step_peaks", lambda *args: 1 / 0)
    with pytest.warns(RuntimeWarning, match="The training goes on without it"):
        trainer = fit(MemfitCallback(steps=range(4), save_to=tmp_path / "run.memfit"))
    assert trainer.global_step == 4
    assert len(modes_of_this_thread()) == 0


def test_nor_is_a_loggers(tmp_path: Path):
    with pytest.warns(RuntimeWarning, match="no such server"):
        trainer = fit(MemfitCallback(steps=(1,), save_to=tmp_path / "run.memfit"), logger=Memory(fails=True), log_every_n_steps=100)
    assert trainer.global_step == 4


def test_each_rank_has_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    recorder = steps_module.StepRecorder((0,), tmp_path / "run.memfit")
    recorder.begin(0, nn.Linear(2, 2), [])
    recorder.end()
    assert [path.name for path in tmp_path.iterdir()] == ["run.rank3.memfit"]
