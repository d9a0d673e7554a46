"""What is written of a plan: each target's own reader takes it, and it says what the plan says."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.planned_models import asked_of

from memfit.errors import ConfigError
from memfit.job import Recipe
from memfit.plan import CheckpointingPolicy, Plan, PlanCost, UnitPolicy
from memfit.plan.emit import TARGETS, emit
from memfit.plan.search.result import plain_recipe


def written(target: str, model: str = "llama3-8b", world_size: int = 8, **words: Any) -> str:
    recipe = plain_recipe(asked_of(model, world_size=world_size, **words))
    return emit(target, None, recipe, world_size)


def test_torchtitans_file_shares_all_gpus_and_sequences_out():
    words = {"tp": 2, "pp": 2, "cp": 2, "batch": 8, "microbatches": 4, "checkpointing": "full", "compile": "blocks"}
    found = tomllib.loads(written("torchtitan", world_size=64, **words, strategy="hybrid_shard"))
    own = found["parallelism"]
    degrees = [own[name] for name in own if name.endswith("degree") and not name.startswith("expert")]
    product = 1
    for size in degrees:
        product *= size
    assert product == 64
    assert own["data_parallel_replicate_degree"] == 4, "the other GPUs of a node share weights"
    assert own["pipeline_parallel_microbatch_size"] == 2
    assert found["training"]["global_batch_size"] == 8 * 8
    assert found["activation_checkpoint"] == {"mode": "full"}
    assert found["compile"]["enable"] is True


def test_parts_of_a_batch_are_batches_whose_gradients_are_added_up():
    training = tomllib.loads(written("torchtitan", batch=4, microbatches=4))["training"]
    assert (training["local_batch_size"], training["global_batch_size"]) == (1, 32)


@pytest.mark.parametrize(
    "words",
    [
        {"strategy": "no_shard", "optimizer": "adamw-fused"},
        {"tp": 2, "batch": 2, "float8": "tensorwise", "compile": "blocks"},
        {"pp": 2, "batch": 4, "microbatches": 4, "schedule": "interleaved-1f1b"},
    ],
)
def test_torchtitan_takes_its_file(words: dict[str, Any], tmp_path: Path):
    config = pytest.importorskip("torchtitan.config", exc_type=ImportError)
    (tmp_path / "plan.toml").write_text(written("torchtitan", **words))
    found = config.ConfigManager().parse_args(["--job.config_file", str(tmp_path / "plan.toml")])
    assert found.parallelism.tensor_parallel_degree == words.get("tp", 1)


@pytest.mark.parametrize("target", ["torchtitan", "python"])
def test_what_torch_cannot_do_around_experts_is_said(target: str):
    words = {"model": "qwen3-30b-a3b", "checkpointing": "selective"}
    assert "selective contexts stop" in written(target, ep=4, **words)
    assert "selective contexts stop" not in written(target, ep=1, **words)


SCRIPT = """
import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM

accelerator = Accelerator(gradient_accumulation_steps=3)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
model = LlamaForCausalLM(LlamaConfig(**sizes))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
print("HOW", accelerator.is_fsdp2, accelerator.num_processes, accelerator.mixed_precision)
print("PLUGIN", accelerator.state.fsdp_plugin.reshard_after_forward, accelerator.state.fsdp_plugin.activation_checkpointing)
tokens = torch.ones(2, 32, dtype=torch.long, device=accelerator.device)
for _ in range(6):
    with accelerator.accumulate(model):
        accelerator.backward(model(tokens, labels=tokens).loss)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_accelerate_trains_by_its_file_on_the_phantom(tmp_path: Path):
    (tmp_path / "train.py").write_text(SCRIPT)
    text = written("accelerate", world_size=2, strategy="shard_grad_op", batch=6, microbatches=3, checkpointing="full")
    (tmp_path / "plan.yaml").write_text(text)
    assert "Accelerator(gradient_accumulation_steps=3)" in text
    start = text.partition("\n")[0].removeprefix("# ").split()
    command = [sys.executable, "-m", "memfit", "run", "--gpu", "H100-80GB", "--steps", "2", *start]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "HOW True 2 bf16" in done.stdout + done.stderr
    assert "PLUGIN False True" in done.stdout + done.stderr


def test_transformers_takes_its_arguments():
    text = written("trainer", batch=4, microbatches=2, checkpointing="full", strategy="shard_grad_op", precision="fp32")
    found: dict[str, Any] = {}
    exec(text, found)
    arguments = found["arguments"]
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (2, 2)
    assert arguments.fsdp_config["reshard_after_forward"] is False
    assert arguments.fsdp_config["activation_checkpointing"] is True


def test_torch_code_is_the_plans_own():
    recipe = plain_recipe(asked_of("llama3-8b", checkpointing="full"))
    figures = PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=1, smallest_fit_bytes=1, step_seconds=1.0)
    plan = Plan(gpu="H200", budget_bytes=1, world_size=8, recipe=recipe, figures=figures)
    assert plan.emit("fsdp2") == plan.emit("python") == plan.code()


@pytest.mark.parametrize(
    ("target", "words", "named"),
    [
        ("accelerate", {"tp": 2, "batch": 2}, "tp 2"),
        ("trainer", {"strategy": "hybrid_shard"}, "strategy hybrid_shard"),
        ("trainer", {"checkpointing": "selective"}, "checkpointing selective"),
        ("torchtitan", {"optimizer": "adafactor"}, "optimizer adafactor"),
        ("torchtitan", {"lora": 8}, "lora 8"),
        ("fsdp2", {"strategy": "no_shard"}, "strategy no_shard"),
    ],
)
def test_what_a_target_cannot_say_is_refused_by_name(target: str, words: dict[str, Any], named: str):
    with pytest.raises(ConfigError, match=named):
        written(target, **words)


def test_a_model_that_torchtitan_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="model gpt2"):
        written("torchtitan", "gpt2")


@pytest.mark.parametrize("target", TARGETS[1:])
def test_the_plan_of_a_script_is_refused(target: str):
    with pytest.raises(ConfigError, match="memfit train --plan"):
        emit(target, None, None, 1)


def test_what_was_decided_by_operator_is_refused_where_it_cannot_be_said():
    policy = CheckpointingPolicy(groups=(UnitPolicy(units=("layers.0",)),), untouched=())
    with pytest.raises(ConfigError, match="operator by operator"):
        emit("trainer", policy, {"model": "llama3-8b", "seq": 128}, 1)


def test_an_unknown_target_is_refused():
    with pytest.raises(ConfigError, match="torchtitan"):
        emit("keras", None, None, 1)


def test_a_recipe_of_a_stranger_is_checked():
    with pytest.raises(ConfigError):
        emit("trainer", None, {"model": "llama3-8b", "no_such_word": 1}, 1)
    assert Recipe(model="llama3-8b").model
