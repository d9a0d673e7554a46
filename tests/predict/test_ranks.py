"""All ranks of a job: which of them can differ, one of each kind, and the verdict of the worst."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import memfit
from memfit.cli import main
from memfit.errors import ConfigError
from memfit.phantom.distributed.layout import Layout
from memfit.predict.ranks import RankKind, RankOutcome, kinds_of, place_of, predict_ranks

MESH = (("pp", 4), ("dp", 8), ("tp", 2))


def ranks_of(layout: Layout) -> list[int]:
    return [kind.rank for kind in kinds_of(layout)]


def test_stages_differ_and_equal_shards_do_not():
    layout = Layout(world_size=64, axes=MESH, pipeline=(0, 16, 32, 48))
    assert ranks_of(layout) == [0, 16, 32, 48, 63]
    assert sum(kind.num_ranks for kind in kinds_of(layout)) == 64


def test_the_last_of_an_axis_with_unequal_shards():
    layout = Layout(world_size=64, axes=MESH, pipeline=(0, 16, 32, 48), uneven=(tuple(range(0, 16, 2)),))
    assert ranks_of(layout) == [0, 14, 16, 30, 32, 46, 48, 62, 63]
    by_rank = {kind.rank: kind.num_ranks for kind in kinds_of(layout)}
    assert by_rank[0] == 14
    assert by_rank[14] == 2


@pytest.mark.parametrize("world_size", [1, 2, 8, 16_384])
def test_a_world_without_meshes(world_size: int):
    found = kinds_of(Layout(world_size=world_size))
    assert [kind.rank for kind in found] == sorted({0, world_size - 1})
    assert sum(kind.num_ranks for kind in found) == world_size


def test_the_kinds_do_not_grow_with_the_world():
    layout = Layout(world_size=16_384, axes=(("pp", 8), ("dp", 256), ("tp", 8)), pipeline=tuple(range(0, 16_384, 2048)))
    assert len(kinds_of(layout)) == 9


def test_where_a_rank_is():
    layout = Layout(world_size=64, axes=MESH)
    assert place_of(0, layout) == "pp 0, dp 0, tp 0"
    assert place_of(63, layout) == "pp 3, dp 7, tp 1"
    assert place_of(3, Layout(world_size=4)) == "rank 3 of 4"
    assert kinds_of(layout)[0] == RankKind(rank=0, label="pp 0, dp 0, tp 0", num_ranks=63)


def build(rows: int = 1024) -> Callable[[], None]:
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("dp",))
    layer = nn.Linear(1024, rows, bias=False, device="cuda")
    fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(layer.parameters())

    def step() -> None:
        layer(torch.ones(1, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_one_of_each_kind_is_predicted():
    """1,026 rows among 4: 257, 257, 257 and 255."""
    job = memfit.predict(lambda: build(1026), world_size=4, steps=1, ranks="all")
    assert [kind.rank for kind in job.kinds] == [0, 3]
    assert [kind.num_ranks for kind in job.kinds] == [3, 1]
    assert job[0].ledger.info.rank == 0
    assert job[3].ledger.info.rank == 3
    assert job.axes == (("dp", 4),)
    assert job.peak_allocated == max(job[0].peak_allocated, job[3].peak_allocated)
    assert job.worst.prediction.verdict.margin == min(job[rank].verdict.margin for rank in (0, 3))
    assert job.fits
    with pytest.raises(KeyError, match="0, 3"):
        job[1]
    alone = memfit.predict(lambda: build(1026), world_size=4, rank=3, steps=1)
    assert job[3].peak_allocated == alone.peak_allocated


def test_the_first_rank_and_the_last_begin_at_once(monkeypatch: pytest.MonkeyPatch):
    """Each of both waits for the other to begin."""
    monkeypatch.setattr(importlib.import_module("memfit.predict.ranks"), "num_cores", lambda: 2)
    layout = Layout(world_size=8, axes=(("dp", 8),))
    one = memfit.predict(build, steps=1)
    both_began = threading.Barrier(2, timeout=60)

    def predict_rank(rank: int, stage_outputs: dict) -> RankOutcome:
        both_began.wait()
        return RankOutcome(prediction=one, layout=layout)

    job = predict_ranks(predict_rank, "all", 8)
    assert [kind.rank for kind in job.kinds] == [0, 7]


PIPELINE = Layout(world_size=64, axes=MESH, pipeline=(0, 16, 32, 48))
UNEVEN = (tuple(range(48, 64, 2)),)


@pytest.mark.parametrize(
    ("is_regular", "last", "predicted"),
    [
        (True, PIPELINE, [0, 16, 32, 63]),
        (True, replace(PIPELINE, uneven=UNEVEN), [0, 16, 32, 48, 63]),
        (False, PIPELINE, [0, 16, 32, 48, 63]),
    ],
    ids=["equal shards", "unequal shards in the last stage", "ranks may have tasks of their own"],
)
def test_the_last_rank_speaks_for_its_stage(is_regular: bool, last: Layout, predicted: list[int]):
    one, asked = memfit.predict(build, steps=1), []

    def predict_rank(rank: int, stage_outputs: dict) -> RankOutcome:
        asked.append(rank)
        return RankOutcome(prediction=one, layout=last if rank == 63 else PIPELINE, is_regular=is_regular)

    job = predict_ranks(predict_rank, "all", 64)
    assert sorted(asked) == predicted
    assert [kind.rank for kind in job.kinds] == predicted
    assert sum(kind.num_ranks for kind in job.kinds) == 64
    assert job.kinds[-1].num_ranks == (1 if 48 in predicted else 16)


def test_ranks_that_are_named_are_all_predicted():
    one = memfit.predict(build, steps=1)
    seen = RankOutcome(prediction=one, layout=PIPELINE, is_regular=True)
    assert [kind.rank for kind in predict_ranks(lambda rank, told: seen, [0, 48, 63], 64).kinds] == [0, 48, 63]


def test_named_ranks():
    job = memfit.predict(build, world_size=8, steps=1, ranks=[5, 2])
    assert [kind.rank for kind in job.kinds] == [2, 5]
    assert "2 kinds" in repr(job)
    assert "dp 5" in job._repr_html_()


@pytest.mark.parametrize("ranks", ["some", [], [8], [-1]])
def test_ranks_that_cannot_be_meant(ranks: str | list[int]):
    with pytest.raises(ConfigError, match="ranks"):
        memfit.predict(build, world_size=8, ranks=ranks)


def test_an_error_says_in_which_rank_it_was():
    def fails() -> Callable[[], None]:
        if dist.is_torchelastic_launched() and int(__import__("os").environ["RANK"]) == 3:
            raise ValueError("only here")
        return build()

    with pytest.raises(memfit.errors.StepFailedError) as failed:
        memfit.predict(fails, world_size=4, steps=1, ranks="all")
    assert "only here" in str(failed.value)
    assert "rank 3" in "".join(failed.value.__notes__)


SCRIPT = """
import torch, torch.distributed as dist
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
model = nn.Linear(1024, 1024, device="cuda")
more = torch.empty(2**20 * (100 if rank == 3 else 1), dtype=torch.uint8, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_on_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert main(["run", "--ranks", "all", "--json", "torchrun", "--nproc-per-node", "4", "train.py"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["worst_rank"] == 3
    assert [kind["rank"] for kind in said["ranks"]] == [0, 3]
    assert said["ranks"][1]["peak_allocated"] - said["ranks"][0]["peak_allocated"] == pytest.approx(99 * 2**20, abs=2**20)
    assert said["peak_allocated"] == said["ranks"][1]["peak_allocated"]
    assert memfit.Ledger.load("run.memfit").info.rank == 3
    assert memfit.Ledger.load("run.rank0.memfit").info.rank == 0


def test_one_rank_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert main(["run", "--rank", "3", "--json", "torchrun", "--nproc-per-node", "4", "train.py"]) == 0
    assert json.loads(capfd.readouterr().out)["peak_allocated"] > 100 * 2**20
    assert memfit.Ledger.load("run.memfit").info.rank == 3


def test_the_terminal_shows_the_kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    assert main(["run", "--ranks", "0,3", "torchrun", "--nproc-per-node", "4", "train.py"]) == 0
    said = capfd.readouterr().out
    assert "4 ranks, 2 kinds of ranks" in said
    assert "Rank 3 (rank 3 of 4) needs most" in said
    assert "memfit report" in said


PIPELINED = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
part = nn.Linear(256 if rank else 64, 256).cuda()
stage = PipelineStage(part, rank, 3, torch.device("cuda", rank))
schedule = ScheduleGPipe(stage, 4, loss_fn=lambda output, target: (output - target).pow(2).mean())
optimizer = torch.optim.SGD(part.parameters())
for _ in range(3):
    given = (torch.ones(1024, 64, device="cuda"),) if rank == 0 else ()
    last = {"target": torch.ones(1024, 256, device="cuda")} if rank == 2 else {}
    schedule.step(*given, **last)
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_whose_pipeline_asks_for_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """A rank alone runs the first stage's rank before; with all ranks, the first tells the others."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PIPELINED)
    words = ["--json", "torchrun", "--nproc-per-node", "3", "train.py"]
    assert main(["run", "--rank", "2", *words]) == 0
    alone = json.loads(capfd.readouterr().out)
    assert main(["run", "--ranks", "all", *words]) == 0
    together = {kind["rank"]: kind for kind in json.loads(capfd.readouterr().out)["ranks"]}
    assert sorted(together) == [0, 1, 2]
    assert together[2]["peak_allocated"] == alone["peak_allocated"]
    assert together[2]["peak_reserved"] == alone["peak_reserved"]
