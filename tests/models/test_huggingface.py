"""Any Hugging Face architecture, from its config alone."""

import builtins
import json
import os
from pathlib import Path

import pytest
import torch
import transformers

import memfit
from memfit.cli import main
from memfit.errors import ConfigError, StepFailedError
from memfit.job import Recipe

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 64,
}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}

WHISPER = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "vocab_size": 512,
    "max_source_positions": 32,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def saved(folder: Path, config, architecture: str = "") -> str:
    config.architectures = [architecture] if architecture else None
    config.save_pretrained(folder)
    return str(folder / "config.json")


def predicted(path: str, world_size: int = 1, **choices):
    return memfit.predict(hf=path, gpu="H100-80GB", world_size=world_size, steps=2, **choices)


@pytest.mark.parametrize(
    ("config", "architecture"),
    [
        (transformers.LlamaConfig(**TEXT), "LlamaForCausalLM"),
        (transformers.LlamaConfig(**TEXT), ""),
        (transformers.BertConfig(**SMALL, vocab_size=512, max_position_embeddings=64), "BertForMaskedLM"),
        (transformers.BertConfig(**SMALL, vocab_size=512, max_position_embeddings=64), "BertForSequenceClassification"),
        (transformers.ViTConfig(**SMALL, image_size=32, patch_size=8), "ViTForImageClassification"),
        (
            transformers.T5Config(
                d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=512, decoder_start_token_id=0
            ),
            "T5ForConditionalGeneration",
        ),
        (
            transformers.WhisperConfig(**WHISPER),
            "WhisperForConditionalGeneration",
        ),
        (transformers.Wav2Vec2Config(**SMALL, num_conv_pos_embeddings=16), "Wav2Vec2ForCTC"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_text_vision_translation_and_sound(config, architecture: str, tmp_path: Path):
    found = predicted(saved(tmp_path, config, architecture))
    held = {category.label: size for category, size in found.breakdown.items()}
    assert held.get("gradient", 0) + held.get("optimizer state", 0) > 0


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1", "ddp"])
def test_tied_weights_stay_tied_when_sharded(engine: str, tmp_path: Path):
    """Optimizer state is two floats a parameter: a head that came apart from its embedding would show."""
    path = saved(tmp_path, transformers.LlamaConfig(**TEXT | {"tie_word_embeddings": True}), "LlamaForCausalLM")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**TEXT | {"tie_word_embeddings": True}))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    strategy = "no_shard" if engine == "ddp" else "full_shard"
    found = predicted(path, 2, engine=engine, strategy=strategy, checkpointing="full")
    state = next(size for category, size in found.breakdown.items() if category.label == "optimizer state")
    assert state == pytest.approx(8 * parameters / (1 if engine == "ddp" else 2), rel=0.02)


def test_it_matches_the_same_model_built_by_hand(tmp_path: Path):
    config = transformers.LlamaConfig(**TEXT)

    def build():
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM._from_config(config, dtype=torch.float32, attn_implementation="sdpa")
        model.to_empty(device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(0, 512, (1, 64), device="cuda")

        def step():
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    by_hand = memfit.predict(build, gpu="H100-80GB", steps=2)
    assert predicted(saved(tmp_path, config, "LlamaForCausalLM")).peak_allocated == pytest.approx(by_hand.peak_allocated, rel=1e-3)


def reason(path: str) -> str:
    with pytest.raises(StepFailedError) as failed:
        predicted(path)
    assert isinstance(failed.value.error, ConfigError)
    return str(failed.value.error)


def test_what_takes_more_than_text_is_refused(tmp_path: Path):
    vision = {"model_type": "clip_vision_model", **SMALL, "image_size": 32, "patch_size": 8}
    made = transformers.LlavaConfig(text_config={"model_type": "llama", **TEXT}, vision_config=vision)
    assert "pixel_values in addition to text" in reason(saved(tmp_path, made, "LlavaForConditionalGeneration"))


def test_code_from_the_hub_is_not_run(tmp_path: Path):
    config = {"model_type": "llama", "auto_map": {"AutoModelForCausalLM": "evil.Model"}, "architectures": ["EvilModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "code that is not part of transformers" in reason(str(tmp_path / "config.json"))


def test_quantized_weights_are_not_taken_for_whole_ones(tmp_path: Path):
    config = {"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "take that entry out" in reason(str(tmp_path / "config.json"))


def test_an_unknown_architecture(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"model_type": "abacus"}')
    assert "cannot use" in reason(str(tmp_path / "config.json"))


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = saved(tmp_path, transformers.LlamaConfig(**TEXT), "LlamaForCausalLM")
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "transformers":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install transformers" in reason(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with names")
def test_a_config_that_is_a_pipe_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(ConfigError, match="there is no file"):
        Recipe(hf=str(tmp_path / "config.json"))


@pytest.mark.parametrize(
    "values",
    [
        *({"num_hidden_layers": value} for value in (-1, 0, 10**6, 10**18, float("nan"), "2", 2.5, True, [2])),
        *({"hidden_size": value} for value in (10**18, 2**63, -4, 0)),
        *({"num_attention_heads": value} for value in (0, 3, 10**12)),
        {"vocab_size": 0},
        {"model_type": "mixtral", "num_local_experts": 10**9},
        {"text_config": {"num_hidden_layers": 10**6}},
        {"torch_dtype": "__import__('os').system('true')"},
        {"hidden_act": "__import__('os')"},
        {"architectures": 5},
        {"model_type": ["llama"]},
    ],
    ids=str,
)
def test_impossible_values_are_refused_in_a_line(values: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    sound = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(sound | values))
    assert main(["predict", "--hf", str(path), "--gpu", "T4", "--seq", "8", "--out", str(tmp_path / "run.memfit")]) == 2
    err = capsys.readouterr().err
    assert (err.startswith("memfit: error: "), err.count("\n")) == (True, 1), err


@pytest.mark.parametrize("flag", ["--world-size", "--batch"])
@pytest.mark.parametrize("value", [10**9, 10**18])
def test_numbers_beyond_all_jobs_are_refused_in_a_line(flag: str, value: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["predict", "--model", "gpt2", "--gpu", "T4", flag, str(value), "--out", str(tmp_path / "run.memfit")]) == 2
    err = capsys.readouterr().err
    assert (err.startswith("memfit: error: "), err.count("\n")) == (True, 1), err
