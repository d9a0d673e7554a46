"""Who predicts: this machine, a real Dask cluster, or an executor of the user's own."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.planned_models import TRAIN

import memfit
from memfit.errors import ConfigError
from memfit.plan.search.executors import open_runner


@pytest.fixture
def train(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(TRAIN)
    return f"{tmp_path}/train.py:build"


@pytest.mark.filterwarnings("ignore")
def test_a_dask_cluster_spreads_the_work(train: str):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster:
        found = memfit.plan(train, gpu="T4", width=[64, 1024], executor=f"dask:{cluster.scheduler_address}", cache=False)
    assert found.best is not None
    assert found.best.inputs["width"] == 64, "the faster of the two"
    assert len({each.cell.inputs["width"] for each in found.tried}) == 2


def test_any_executor_of_pythons_does(train: str):
    with ThreadPoolExecutor(1) as executor:
        found = memfit.plan(train, gpu="T4", width=[64, 1024], executor=executor, jobs=1, cache=False)
    assert found.best is not None


@pytest.mark.parametrize(
    ("executor", "said"),
    [
        ("carrier-pigeons", "unknown executor 'carrier-pigeons'"),
        ("processes:many", "processes:8"),
        ("processes:0", "at least 1"),
        ("dask:", "does not say where the cluster is"),
        (7, "cannot predict with 7"),
    ],
)
def test_an_executor_that_cannot_be_is_refused(executor: object, said: str):
    with pytest.raises(ConfigError, match=said):
        open_runner(executor)  # type: ignore[arg-type]


@pytest.mark.parametrize(("executor", "module"), [("slurm", "submitit"), ("dask:tcp://here:1", "distributed")])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, executor: str, module: str):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"pip install {module}"):
        open_runner(executor)


class Later:
    """As submitit's jobs: none of Python's futures."""

    def __init__(self, answer: dict[str, str]) -> None:
        self.answer, self.was_cancelled = answer, False

    def result(self) -> dict[str, str]:
        return self.answer

    def cancel(self) -> None:
        self.was_cancelled = True


def test_jobs_that_are_no_futures_are_waited_for():
    jobs: list[Later] = []

    class Cluster:
        def submit(self, function: object, job: dict[str, str]) -> Later:
            jobs.append(Later({"error": "as expected", "details": ""}))
            return jobs[-1]

    runner = open_runner(Cluster(), 2)  # type: ignore[arg-type]
    assert runner.num_lanes == 2
    assert runner.submit({}).result(timeout=60)["error"] == "as expected"
    runner.close()
    assert jobs[0].was_cancelled
