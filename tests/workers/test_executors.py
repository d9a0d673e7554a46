"""Who predicts: this machine, a real Dask cluster, or an executor of the user's own."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.compare_cells import configuration
from helpers.planned_models import TRAIN
from helpers.pretended_slurm import pretend_slurm

import memfit
from memfit.errors import ConfigError
from memfit.plan.search.jobs import job_of
from memfit.workers.executors import open_runner


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

    with open_runner(Cluster(), 2) as runner:  # type: ignore[arg-type]
        assert runner.num_lanes == 2
        assert runner.submit({}).result(timeout=60)["error"] == "as expected"
    assert jobs[0].was_cancelled


# -- Slurm: submitit's own way, with programs of that name which run a job on this machine -----------------------------------------


def test_a_job_of_slurm_predicts(train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("submitit")
    pretend_slurm(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    asked = configuration(function=train, width=64, gpu="T4", world_size=1)
    with open_runner("slurm:1") as runner:
        answer = runner.submit(job_of(asked, is_final=False)).result(timeout=120)
    assert answer["figures"]["peak_allocated"] > 0
    assert (tmp_path / "memfit_plan_jobs").is_dir()


def test_a_job_of_slurm_that_dies_is_a_failed_prediction(train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("submitit")
    pretend_slurm(tmp_path, monkeypatch, srun="exit 1")
    monkeypatch.chdir(tmp_path)
    asked = configuration(function=train, gpu="T4", world_size=1)
    with open_runner("slurm:1") as runner, pytest.raises(Exception, match="has not produced any output"):
        runner.submit(job_of(asked, is_final=False)).result(timeout=120)


def test_a_queue_that_takes_nothing_is_said_at_once(train: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("submitit")
    pretend_slurm(tmp_path, monkeypatch, sbatch="echo 'sbatch: error: invalid partition' >&2; exit 1")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"takes no work(.|\n)*invalid partition"):
        memfit.plan(train, gpu="T4", width=[64, 128], executor="slurm", cache=False)


def test_where_there_is_no_slurm_it_is_said(monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="jobs can be sent to Slurm"):
        open_runner("slurm")
