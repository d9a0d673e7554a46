"""Stages of pipelines: what their neighbours would send is worked out, and the installed torch's own schedules run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline, schedules
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import memfit
from memfit.errors import PredictionError
from memfit.phantom.distributed.pipelines import Neighbours
from memfit.torch_compat.patches import Patches
from memfit.torch_compat.pipelining import answer_older_stages

DIM, SEQ, VOCAB, BATCH = 256, 128, 1000, 8
HIDDEN_BYTES = SEQ * DIM * 4
"""What one microbatch of one sequence sends from a stage to the next."""


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.down(torch.relu(self.up(h)))


class Part(nn.Module):
    """The layers of one stage."""

    def __init__(self, first: bool, last: bool, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM) if first else None
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(DIM, VOCAB) if last else None

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            h = self.embed(h)
        for layer in self.layers:
            h = layer(h)
        return self.head(h) if self.head is not None else h


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def shapes(number: int, total: int) -> dict[str, Any]:
    hidden = torch.empty(1, SEQ, DIM, device="meta")
    tokens = torch.empty(1, SEQ, dtype=torch.long, device="meta")
    logits = torch.empty(1, SEQ, VOCAB, device="meta")
    return {"input_args": (hidden if number else tokens,), "output_args": (hidden if number < total - 1 else logits,)}


def stages_of(rank: int, ranks: int, schedule: str, virtual: int) -> list[int]:
    total = ranks * virtual
    return [rank, total - 1 - rank] if "V" in schedule else [rank + ranks * turn for turn in range(virtual)]


def train(
    schedule: str,
    *,
    ranks: int = 2,
    virtual: int = 1,
    said: bool = True,
    wrap: Callable[[nn.Module, Any], None] | None = None,
    mesh_shape: tuple[int, ...] = (),
    names: tuple[str, ...] = ("pp",),
    csv: Path | None = None,
) -> Callable[[], Callable[[], None]]:
    def build() -> Callable[[], None]:
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", mesh_shape or (ranks,), mesh_dim_names=names)
        group, rank = mesh["pp"].get_group(), mesh["pp"].get_local_rank()
        mine, total = stages_of(rank, ranks, schedule, virtual), ranks * virtual
        parts = []
        for number in mine:
            part = Part(number == 0, number == total - 1).cuda()
            if wrap is not None:
                wrap(part, mesh)
            given = shapes(number, total) if said else {}
            parts.append(PipelineStage(part, number, total, torch.device("cuda"), group=group, **given))
        if csv is not None:
            runner = schedules._PipelineScheduleRuntime(parts, BATCH, loss_fn=loss_of)
            runner._load_csv(str(csv), format="compute_only")
        else:
            kind = schedules.get_schedule_class(schedule)
            runner = kind(parts if issubclass(kind, schedules.PipelineScheduleMulti) else parts[0], BATCH, loss_fn=loss_of)
        model = nn.ModuleList(part.submod for part in parts)
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        tokens, labels = (torch.randint(0, VOCAB, (BATCH, SEQ), device="cuda") for _ in range(2))

        def step() -> None:
            last = {"target": labels, "losses": []} if total - 1 in mine else {}
            runner.step(*((tokens,) if 0 in mine else ()), **last)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


def predict(build: Callable[[], Any], *, ranks: int = 2, rank: int = 0, **more: Any) -> memfit.Prediction:
    return memfit.predict(build, world_size=ranks, rank=rank, steps=2, **more)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("schedule", "virtual"),
    [
        ("GPipe", 1),
        ("1F1B", 1),
        ("Interleaved1F1B", 2),
        ("LoopedBFS", 2),
        ("InterleavedZeroBubble", 2),
        ("ZBVZeroBubble", 2),
        ("DualPipeV", 2),
    ],
)
def test_every_schedule_runs_on_every_rank(schedule: str, virtual: int, rank: int):
    found = predict(train(schedule, virtual=virtual), rank=rank)
    assert found.peak_allocated > found.init.end_allocated > 0
    assert not any("taken to send" in sentence for sentence in found.assumptions)


def test_the_first_stage_keeps_what_is_in_flight():
    """GPipe holds all microbatches at once, 1F1B as many as there are stages."""
    gpipe, one = (predict(train(name, ranks=4), ranks=4).peak_allocated for name in ("GPipe", "1F1B"))
    saved_per_block = HIDDEN_BYTES * 4  # what goes into the second product, and more
    assert gpipe - one >= (BATCH - 4) * 2 * saved_per_block
    ranks = [predict(train("1F1B", ranks=4), ranks=4, rank=rank) for rank in (1, 2)]
    assert ranks[0].peak_allocated > ranks[1].peak_allocated


@pytest.mark.skipif(torch.__version__ >= "2.15", reason="torch 2.15 makes a buffer when it receives, and frees it")
def test_buffers_for_what_is_received():
    """A middle stage has a buffer for the activations and one for the gradients of each microbatch, from its first step on."""
    first, middle = (predict(train("1F1B", ranks=3), ranks=3, rank=rank) for rank in (0, 1))
    held = [found.steps[-1].end_allocated for found in (first, middle)]
    embedding = VOCAB * DIM * 4
    assert held[1] - (held[0] - embedding) == pytest.approx(BATCH * HIDDEN_BYTES, abs=8192)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_shapes_that_nobody_has_said(rank: int):
    """The first stage is run on its own rank first; what comes out is what the script could have said."""
    said, unsaid = (predict(train("1F1B", ranks=3, said=said), ranks=3, rank=rank) for said in (True, False))
    assert unsaid.peak_allocated == pytest.approx(said.peak_allocated, rel=0.002)
    assert unsaid.steps[-1].end_allocated == said.steps[-1].end_allocated
    assert any("taken to send what stage 0 sends" in sentence for sentence in unsaid.assumptions) == (rank == 2)


def test_a_first_stage_that_says_nothing():
    """Its script has said all there; the other's has not."""

    def build() -> Callable[[], None]:
        return train("1F1B", said=int(os.environ["RANK"]) == 0)()

    with pytest.raises(PredictionError, match="input_args"):
        predict(build, rank=1)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="the schedules of torch 2.11 know nothing of it")
def test_the_newer_torch_runs_backward_to_learn_about_gradients():
    older, newer = (predict(train("1F1B", said=False), rank=1, torch_version=name) for name in ("2.11+cu130", "2.13+cu130"))
    assert newer.steps[-1].end_allocated == pytest.approx(older.steps[-1].end_allocated, abs=2 * 2**20)
    assert len(newer.ledger.events) > len(older.ledger.events)


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_fsdp_in_a_stage():
    def shard(part: nn.Module, mesh: Any) -> None:
        for layer in part.layers:  # type: ignore[union-attr]
            fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False)
        fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)

    whole = predict(train("1F1B"), rank=1)
    build = train("1F1B", wrap=shard, mesh_shape=(2, 4), names=("pp", "dp"))
    sharded = predict(build, ranks=8, rank=4)
    assert sharded.init.end_allocated < whole.init.end_allocated / 2


def test_tensor_parallel_in_a_stage():
    def split(part: nn.Module, mesh: Any) -> None:
        for layer in part.layers:  # type: ignore[union-attr]
            parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})

    whole, halved = (
        predict(train("1F1B", said=False), rank=1),
        predict(train("1F1B", wrap=split, mesh_shape=(2, 2), names=("pp", "tp"), said=False), ranks=4, rank=2),
    )
    linear_bytes = 2 * (2 * 4 * DIM * DIM + 4 * DIM) * 4
    assert whole.init.end_allocated - halved.init.end_allocated == pytest.approx(linear_bytes / 2, rel=0.02)


def test_a_schedule_from_a_file(tmp_path: Path):
    order = tmp_path / "order.csv"
    rows = []
    for rank in range(2):
        forward = [f"{rank}F{number}" for number in range(BATCH)]
        backward = [f"{rank}B{number}" for number in range(BATCH)]
        rows.append(",".join(([""] * rank) + forward + ([""] * (2 - rank)) + backward))
    order.write_text("\n".join(rows) + "\n")
    by_file, gpipe = predict(train("", csv=order)), predict(train("GPipe"))
    assert by_file.peak_allocated == pytest.approx(gpipe.peak_allocated, rel=0.05)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # torch.export's own
@pytest.mark.parametrize("rank", [0, 1])
def test_a_model_that_torch_splits(rank: int):
    def build() -> Callable[[], None]:
        dist.init_process_group("nccl")
        model = nn.Sequential(nn.Embedding(VOCAB, DIM), Block(), Block(), nn.Linear(DIM, VOCAB))
        example = torch.zeros(1, SEQ, dtype=torch.long)
        pipe = pipeline(model, mb_args=(example,), split_spec={"2": SplitPoint.BEGINNING})
        stage = pipe.build_stage(dist.get_rank(), torch.device("cuda", dist.get_rank()))
        stage.submod.cuda()
        runner = schedules.Schedule1F1B(stage, BATCH, loss_fn=loss_of)
        optimizer = torch.optim.AdamW(stage.submod.parameters())
        tokens, labels = (torch.randint(0, VOCAB, (BATCH, SEQ), device="cuda") for _ in range(2))

        def step() -> None:
            if dist.get_rank() == 0:
                runner.step(tokens)
            else:
                runner.step(target=labels, losses=[])
            optimizer.step()
            optimizer.zero_grad()

        return step

    found = predict(build, rank=rank)
    assert found.steps[-1].peak_allocated > found.init.end_allocated


def test_older_stages_ask_by_messages():
    """As torch before 2.13 does it: the same answers, by another way."""
    module = SimpleNamespace(dist=dist)

    class Stage:
        stage_index, told = 1, None

        def _shape_inference(self, args: tuple[Any, ...]) -> Any:
            objects = [None]
            module.dist.recv_object_list(objects, src=0)
            module.dist.send_object_list([("out", objects[0])], dst=2)
            return objects[0]

    module.PipelineStage = Stage
    neighbours = Neighbours(told={0: "hidden"})
    patches = Patches("a test").because("of it")
    answer_older_stages(
        patches,
        module,
        lambda stage, source: neighbours.told[source],
        lambda stage, meta: neighbours.told.update({stage.stage_index: meta}),
    )
    try:
        assert Stage()._shape_inference(()) == "hidden"
        assert neighbours.told[1] == ("out", "hidden")
        assert module.dist.get_rank is dist.get_rank
    finally:
        patches.undo()
    assert module.dist is dist
