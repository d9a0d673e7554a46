"""Which cells a grid has."""

import importlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memfit
from memfit.choices import CHECKPOINTINGS, STRATEGIES
from memfit.cli import main
from memfit.compare.grid import make_grid
from memfit.errors import ConfigError
from memfit.fsdp import ShardingStrategy
from memfit.job import Cell, Configuration, PredictOptions, Subject
from memfit.job.axes import read_axes
from memfit.job.states import least_state_bytes
from memfit.models import find_model


def grid(subject: Subject = Subject(model="llama3-8b"), gpu="H100-80GB", world_size=8, **axes):  # noqa: B008
    return make_grid(subject, read_axes({"gpu": gpu, "world_size": world_size, **axes}), PredictOptions())


def pairs(found) -> set[tuple[str, str]]:
    return {(cell.inputs["strategy"], cell.inputs["checkpointing"]) for cell in found.cells}


def test_the_usual_grid_on_several_gpus():
    found = grid(Subject(model="gpt2"))
    assert pairs(found) == {(s, c) for s in ("full_shard", "shard_grad_op", "no_shard") for c in CHECKPOINTINGS}
    assert found.varying == ("strategy", "checkpointing"), "the engine follows from the strategy"
    assert grid(strategy="full_shard", engine=["fsdp1", "fsdp2"]).varying == ("engine",)
    assert ("hybrid_shard", "none") in pairs(grid(Subject(model="gpt2"), world_size=16))


def test_what_cannot_fit_is_left_out_with_the_reason():
    found = grid(Subject(model="llama3-70b"), world_size=64)
    assert pairs(found) == {("full_shard", checkpointing) for checkpointing in CHECKPOINTINGS}
    assert [reason.partition(" ")[0] for reason in found.left_out] == ["shard_grad_op", "hybrid_shard", "no_shard"]
    assert "1.03 TiB" in found.left_out[2]


def test_where_nothing_can_fit_offloading_is_tried():
    found = grid(Subject(model="llama3-405b"), world_size=8)
    assert {cell.inputs["offload"] for cell in found.cells} == {"params"}
    assert found.left_out
    assert {cell.inputs["offload"] for cell in grid(Subject(model="llama3-405b"), offload="none").cells} == {"none"}


def test_one_gpu():
    found = grid(Subject(model="gpt2"), world_size=1)
    assert {cell.inputs["strategy"] for cell in found.cells} == {""}
    assert {cell.inputs["precision"] for cell in found.cells} == {"bf16-mixed", "bf16"}
    assert {cell.inputs["precision"] for cell in grid(Subject(model="gpt2"), gpu="T4", world_size=1).cells} == {"fp16-mixed"}
    both = grid(Subject(model="gpt2"), gpu=["T4", "H100"], world_size=1)
    assert {cell.inputs["precision"] for cell in both.cells} == {"fp16-mixed"}, "GPUs that are compared compute the same"


def test_axes_that_are_given_are_the_only_ones():
    found = grid(strategy=["full_shard", "no_shard"], batch=2)
    assert [(cell.inputs["strategy"], cell.inputs["checkpointing"], cell.inputs["batch"]) for cell in found.cells] == [
        ("full_shard", "none", 2),
        ("no_shard", "none", 2),
    ]


def test_a_settled_value_leaves_the_rest_to_vary():
    found = grid(Subject(model="gpt2"), checkpointing="full", batch=4)
    assert {cell.inputs["checkpointing"] for cell in found.cells} == {"full"}
    assert len(found.cells) == 3


def test_words_numbers_and_members_of_enumerations():
    assert read_axes({"strategy": ShardingStrategy.FULL_SHARD, "gpu": "h100", "mesh": "2x4", "seq": None}) == {
        "strategy": ("full_shard",),
        "gpu": ("H100-80GB",),
        "mesh": ((2, 4),),
    }
    assert read_axes({"mesh": (2, 4)}) == {"mesh": ((2, 4),)}
    assert read_axes({"mesh": [(2, 4), "1x8"]}) == {"mesh": ((2, 4), (1, 8))}


@pytest.mark.parametrize(
    ("axes", "reason"),
    [
        ({"strategy": "ful_shard"}, "strategy 'ful_shard' is not known"),
        ({"batch": [1, 0]}, "batch takes whole numbers of at least 1, not 0"),
        ({"batch": True}, "not True"),
        ({"batch": []}, "batch has no values"),
        ({"mesh": "8by8"}, "write it like dp=8,tp=8,pp=8, or 8x8"),
        ({"mesh": "dp=8,xp=2"}, "cannot read 'dp=8,xp=2' as a mesh"),
        ({"layers": 3}, "a model by name has no axis 'layers': use one of strategy, "),
        ({"gpu": "abacus"}, "unknown GPU"),
        ({"optimizer": object()}, "cannot be handed to the process of a cell"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_mistakes_are_told_before_anything_runs(axes: dict, reason: str):
    with pytest.raises(ConfigError, match=reason):
        grid(**axes)


@pytest.mark.parametrize("given", [{}, {"model": "gpt2", "hf": "x"}])
def test_one_thing_is_trained(given: dict):
    with pytest.raises(ConfigError, match="say what is trained"):
        Subject(**given)


def test_a_function_gets_the_axes_by_name(tmp_path: Path):
    (tmp_path / "train.py").write_text("def build(*, layers, strategy='x'): ...\ndef loose(**any): ...\n")
    found = grid(Subject(function=f"{tmp_path}/train.py:build"), layers=[1, 2])
    assert [cell.inputs["layers"] for cell in found.cells] == [1, 2]
    assert grid(Subject(function=f"{tmp_path}/train.py:loose"), whatever=1).cells[0].inputs["whatever"] == 1
    with pytest.raises(ConfigError, match=r"takes no argument 'width'.*write def build\(\*, width\)"):
        grid(Subject(function=f"{tmp_path}/train.py:build"), width=3)


@given(
    st.sampled_from(["gpt2", "llama3-8b", "qwen3-0.6b", "mixtral-8x7b"]),
    st.sampled_from([*STRATEGIES]),
    st.sampled_from(["bf16-mixed", "bf16", "fp32"]),
    st.sampled_from([8, 64]),
)
def test_laws_of_a_cell(model: str, strategy: str, precision: str, world_size: int):
    (cell,) = grid(
        Subject(model=model), strategy=[strategy], precision=[precision], checkpointing=["full", "none"], world_size=world_size
    ).cells[:1]
    assert cell.recipe.settled(world_size, has_bf16=True) == cell.recipe, "a cell's inputs say everything"
    weights = find_model(model).num_parameters * (2 if precision == "bf16" else 4)
    assert 3 * weights // world_size <= least_state_bytes(cell) <= 4 * weights + weights


def test_links_and_expected_values_reach_every_cell(monkeypatch: pytest.MonkeyPatch):
    asked: list[Configuration] = []

    def predict_cells(cells, known, num_lanes, progress):
        asked.extend(cells)
        return tuple(Cell(configuration=cell, error="not predicted") for cell in cells)

    monkeypatch.setattr(importlib.import_module("memfit.compare.api"), "predict_cells", predict_cells)
    memfit.compare(model="gpt2", interconnect="none", expected={"mask": 0.5})
    by_words = ["compare", "--model", "gpt2", "--interconnect", "none", "--expected", "mask=0.5"]
    assert main(by_words) == 1, "nothing was predicted"
    assert {(cell.options.interconnect, cell.options.expected["mask"]) for cell in asked} == {("none", 0.5)}
    assert asked[0].to_json()["options"]["interconnect"] == "none", "the worker is told"
    with pytest.raises(ConfigError, match="cannot read 'string' as an interconnect"):
        memfit.compare(model="gpt2", interconnect="string")


def test_several_models_are_cells_of_one_table(monkeypatch: pytest.MonkeyPatch):
    api = importlib.import_module("memfit.compare.api")
    monkeypatch.setattr(api, "predict_cells", lambda cells, *others: tuple(Cell(configuration=asked, error="-") for asked in cells))
    found = api.compare(model=["gpt2", "Qwen3-0.6B"], gpu="4090", seq=512, lora=8, quantize=["none", "nf4"])
    assert [subject.model for subject in found.subjects] == ["gpt2", "qwen3-0.6b"]
    assert found.varying == ("model", "quantize")
    assert {(cell.inputs["model"], cell.inputs["quantize"]) for cell in found.cells} == {
        (model, quantize) for model in ("gpt2", "qwen3-0.6b") for quantize in ("none", "nf4")
    }
