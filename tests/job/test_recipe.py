"""Recipes: what they refuse, what they fill in, and what each choice does to a prediction."""

import json
from pathlib import Path

import pytest

import memfit
from memfit.choices import ENGINES, PREFETCHES, STRATEGIES
from memfit.errors import ConfigError
from memfit.fsdp import BackwardPrefetch, Engine, ShardingStrategy
from memfit.job import Recipe


def predicted(world_size: int = 8, gpu: str = "H100-80GB", **choices):
    return memfit.predict(gpu=gpu, world_size=world_size, steps=2, **{"model": "tiny"} | choices)


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ({}, "name a model"),
        ({"model": "gpt2", "hf": "config.json"}, "name a model"),
        ({"model": "gpt2", "strategy": "ful_shard"}, "strategy 'ful_shard' is not known: use one of full_shard, "),
        ({"model": "gpt2", "precision": "int1"}, "use one of bf16-mixed, fp16-mixed, bf16, fp32"),
        ({"model": "gpt2", "seq": 1025}, "up to 1024 tokens, not 1025"),
        ({"model": "gpt2", "batch": 0}, "batch takes a whole number of at least 1, not 0"),
        ({"model": "gpt2", "batch": 10**18}, "more than 100,000,000,000 tokens"),
        ({"model": "gpt2", "lora": 10**18}, "lora takes a rank of at most 1,048,576"),
        ({"hf": "/nowhere/config.json"}, "there is no file /nowhere/config.json"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_refused(choices: dict, reason: str):
    with pytest.raises(ConfigError, match=reason):
        Recipe(**choices)


def test_the_sequence_is_the_context_but_not_too_long():
    assert Recipe(model="gpt2").seq == 1024
    assert Recipe(model="llama3.1-8b").seq == 8192
    assert Recipe(model="llama3.1-8b", seq=131072).seq == 131072


@pytest.mark.parametrize(
    ("config", "seq"),
    [
        ({"model_type": "x", "max_position_embeddings": 2048}, 2048),
        ({"model_type": "x", "n_positions": 512, "vocab_size": 9}, 512),
        ({"model_type": "x", "text_config": {"max_position_embeddings": 65536}}, 8192),
        ({"model_type": "t5"}, 512),
    ],
    ids=str,
)
def test_the_context_of_a_config(config: dict, seq: int, tmp_path: Path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert Recipe(hf=str(path)).seq == seq


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": ["A"]}'])
def test_a_file_that_is_no_config(text: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"give the config.json of a Hugging Face model"):
        Recipe(hf=str(tmp_path / "config.json"))


def test_what_is_left_to_the_gpus():
    assert Recipe(model="gpt2").settled(1, has_bf16=True).strategy == ""
    alone = Recipe(model="gpt2").settled(1, has_bf16=False)
    assert (alone.engine, alone.precision) == ("", "fp16-mixed")
    many = Recipe(model="gpt2").settled(8, has_bf16=True)
    assert (many.strategy, many.engine, many.precision) == ("full_shard", "fsdp2", "bf16-mixed")
    assert Recipe(model="gpt2", strategy="no_shard").settled(8, has_bf16=True).engine == "ddp"


def test_the_words_are_those_of_the_vocabulary():
    assert set(STRATEGIES) == {strategy.text for strategy in ShardingStrategy}
    assert set(ENGINES) == {str(engine) for engine in Engine}
    assert set(PREFETCHES) == {prefetch.text for prefetch in BackwardPrefetch} | {"none"}


# -- predicted -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1"])
@pytest.mark.parametrize(
    ("strategy", "checkpointing"), [("full_shard", "selective"), ("shard_grad_op", "full"), ("hybrid_shard", "none")]
)
def test_strategies_on_both_engines(engine: str, strategy: str, checkpointing: str):
    found = predicted(16, engine=engine, strategy=strategy, checkpointing=checkpointing)
    labels = {category.label for category in found.breakdown}
    assert "optimizer state" in labels
    assert 0 < found.peak_allocated <= found.smallest_fit <= found.peak_reserved


def test_sharding_and_its_absence():
    """Optimizer state is two floats a parameter: all of them without sharding, an eighth with it."""
    parameters = memfit.models.find_model("tiny").num_parameters

    def state(**choices) -> int:
        found = predicted(8, checkpointing="full", **choices).breakdown
        return next(size for category, size in found.items() if category.label == "optimizer state")

    assert state(strategy="no_shard") == pytest.approx(8 * parameters, rel=0.01)
    assert state(strategy="full_shard") == pytest.approx(parameters, rel=0.1)


@pytest.mark.parametrize(
    ("optimizer", "precision"),
    [("adamw", "fp16-mixed"), ("adamw-fused", "bf16"), ("sgd", "bf16-mixed"), ("sgd-momentum", "fp32"), ("adafactor", "fp32")],
)
def test_every_optimizer_and_precision_on_one_gpu(optimizer: str, precision: str):
    assert predicted(1, optimizer=optimizer, precision=precision, seq=16).peak_allocated > 0


def test_less_is_kept_the_more_is_computed_again():
    none, selective, full = (predicted(1, checkpointing=how, batch=8).peak_allocated for how in ("none", "selective", "full"))
    assert none > selective > full


def test_offloaded_state_is_not_on_the_gpu():
    labels = {category.label for category in predicted(8, offload="params").breakdown}
    assert "optimizer state" not in labels


@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-moe"])
def test_other_architectures(model: str):
    assert predicted(8, model=model, checkpointing="selective").peak_allocated > 0
    assert predicted(1, model=model).peak_allocated > 0


def test_a_mesh_is_taken():
    whole = predicted(16, strategy="hybrid_shard", mesh=(2, 8)).peak_allocated
    assert predicted(16, strategy="hybrid_shard", mesh=(8, 2)).peak_allocated > whole
