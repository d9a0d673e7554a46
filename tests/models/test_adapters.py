"""LoRA and QLoRA need what PEFT and bitsandbytes need, where these are installed; and what they must need by counting."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memfit
from memfit.errors import ConfigError
from memfit.job import Recipe
from memfit.ledger import Category

SIZES = {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
    **SIZES,
}
BATCH, SEQ = 2, 1024


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (path := tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return path


def of_others(path: Path, *, is_quantized: bool, targets: Any, eight_bits: bool = False) -> Callable[[], Callable[[], None]]:
    """The same training with the packages themselves."""

    def build() -> Callable[[], None]:
        import peft
        import transformers

        made = transformers.AutoConfig.from_pretrained(path.parent)
        model = transformers.LlamaForCausalLM._from_config(made, dtype=torch.bfloat16, attn_implementation="sdpa")
        if is_quantized:
            import bitsandbytes

            for name, module in list(model.named_modules()):
                if isinstance(module, nn.Linear) and name != "lm_head":
                    kept = bitsandbytes.nn.Linear4bit(
                        module.in_features, module.out_features, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"
                    )
                    setattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], kept)
            model.is_loaded_in_4bit = True
        model = model.cuda().train()
        if is_quantized:
            model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
        model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=targets))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if eight_bits:
            import bitsandbytes

            optimizer: Any = bitsandbytes.optim.AdamW8bit(trained)
        else:
            optimizer = torch.optim.AdamW(trained)
        tokens = torch.randint(0, CONFIG["vocab_size"], (BATCH, SEQ), device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ({}, {"is_quantized": False, "targets": None}),
        ({"quantize": "nf4"}, {"is_quantized": True, "targets": None}),
        (
            {"quantize": "nf4", "lora_modules": "all-linear", "optimizer": "adamw8bit"},
            {"is_quantized": True, "targets": "all-linear", "eight_bits": True},
        ),
    ],
    ids=["lora", "qlora", "qlora all-linear in 8 bits"],
)
def test_peft_needs_as_much(config: Path, words: dict[str, Any], others: dict[str, Any]):
    pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("transformers")
    theirs = memfit.predict(of_others(config, **others), gpu="H100")
    ours = memfit.predict(hf=config, gpu="H100", batch=BATCH, seq=SEQ, lora=16, **words)
    mine, real = ours.steps[-1].peak_allocated, theirs.steps[-1].peak_allocated
    assert abs(mine - real) <= 4096
    for category in (Category.PARAMETER, Category.OPTIMIZER_STATE, Category.ACTIVATION):
        assert ours.breakdown.get(category, 0) == pytest.approx(theirs.breakdown.get(category, 0)), category


def test_only_adapters_have_gradients_and_states(config: Path):
    found = memfit.predict(hf=config, gpu="H100", batch=1, seq=128, lora=8, lora_modules="all-linear", steps=2)
    hidden, inner, keys = SIZES["hidden_size"], SIZES["intermediate_size"], 128
    one_layer = 2 * (hidden + hidden) + 2 * (hidden + keys) + 3 * (hidden + inner)
    adapters = SIZES["num_hidden_layers"] * 8 * one_layer * 4
    states = found.breakdown[Category.OPTIMIZER_STATE]
    assert 2 * adapters <= states <= 2.1 * adapters + 65536
    assert found.breakdown[Category.PARAMETER] - adapters == pytest.approx(sum(_numbers()) * 2, rel=0.01)


def _numbers() -> list[int]:
    hidden, inner, keys, layers = SIZES["hidden_size"], SIZES["intermediate_size"], 128, SIZES["num_hidden_layers"]
    return [2 * 1000 * hidden, hidden, layers * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner + 2 * hidden)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"quantize": "nf4"}, "say --lora"),
        ({"lora": 16, "tp": 2}, "data parallelism"),
        ({"lora": 16, "quantize": "nf4", "strategy": "full_shard"}, "no_shard"),
        ({"lora": -1}, "at least 1"),
    ],
)
def test_what_does_not_go_together_is_refused(words: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        Recipe(model="llama3-8b", **words)
