"""The figures of each step, logged by the real packages, offline. Those that are not installed are left out."""

import warnings

import pytest

from memfit.errors import ConfigError
from memfit.integrations.loggers import MlflowLogger, TensorBoardLogger, WandbLogger
from memfit.record.sources.allocator.alarms import StepFigures

NAMES = {"memfit/allocated_bytes", "memfit/inactive_split_bytes", "memfit/peak_bytes", "memfit/reserved_bytes"}


def figures(step):
    return StepFigures("cuda:0", 2**37, step, step, 0, 1, 900 + step, 100 + step, 1000, 100 + step, 5, -1)


def test_tensorboard_has_every_step(tmp_path):
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(tmp_path)) as writer:
            logger = TensorBoardLogger(writer)
            for step in range(3):
                logger(figures(step))
        found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == NAMES
    assert [(event.step, event.value) for event in found.Scalars("memfit/peak_bytes")] == [(0, 900), (1, 901), (2, 902)]


def test_wandb_has_every_second_step(tmp_path):
    wandb = pytest.importorskip("wandb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = wandb.init(mode="offline", dir=str(tmp_path), project="memfit")
        logger = WandbLogger(run, every=2)
        for step in range(5):
            logger(figures(step))
        summary = dict(run.summary)
        run.finish()
    assert summary["memfit/step"] == 4
    assert summary["memfit/peak_bytes"] == 904
    assert set(summary) >= NAMES


def test_mlflow_has_every_step(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small distribution has no database
    mlflow = pytest.importorskip("mlflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        client = mlflow.MlflowClient(tracking_uri=(tmp_path / "runs").as_uri())
        run_id = client.create_run(client.create_experiment("memfit")).info.run_id
        logger = MlflowLogger(client, run_id)
        for step in range(3):
            logger(figures(step))
        history = client.get_metric_history(run_id, "memfit/allocated_bytes")
    assert [(metric.step, metric.value) for metric in history] == [(0, 100), (1, 101), (2, 102)]


def test_a_number_that_makes_no_sense_is_refused():
    with pytest.raises(ConfigError):
        MlflowLogger(None, "", every=0)
