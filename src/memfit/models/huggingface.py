"""Any Hugging Face architecture from its ``config.json`` alone: no weights, no download."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memfit.errors import ConfigError
from memfit.models.config import read_config

_AUTO_CLASSES = (
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForMaskedLM",
    "AutoModelForCTC",
    "AutoModelForImageClassification",
    "AutoModelForAudioClassification",
    "AutoModel",
)
"""Tried in this order where the config does not name the class."""


Loss = Callable[[nn.Module], Tensor]
"""Forward of a model, as it was sharded, on data that is on the GPU."""


def load_workload(path: Path, dtype: torch.dtype, *, batch: int) -> tuple[nn.Module, Callable[[int], Loss]]:
    """The model that a config names, on the meta device, and what makes its loss on a batch of sequences of some length."""
    config = _config(path)
    with torch.device("meta"):
        model = _model(path, config, dtype).train()

    def loss_on(seq: int) -> Loss:
        inputs = _inputs(model, batch, seq)
        return lambda model: _loss(model(**inputs))

    return model, loss_on


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ConfigError("--hf needs the transformers package: pip install transformers") from error
    return transformers


def _config(path: Path) -> Any:
    plain = read_config(path)
    named = plain.get("architectures")
    first = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if plain.get("auto_map") and not (first and hasattr(_transformers(), first)):
        raise ConfigError(
            f"{path} needs code that is not part of transformers (auto_map): write a function that builds the model, and give "
            "memfit FILE.py:FUNCTION"
        )
    if plain.get("quantization_config"):
        raise ConfigError(
            f"{path} is of weights that were quantized (quantization_config), and memfit trains the model as it was before: take "
            "that entry out. Frozen weights in four bits are --lora RANK --quantize nf4"
        )
    try:
        return _transformers().AutoConfig.for_model(**plain)
    except Exception as error:  # a config may hold any values
        raise _unusable(path, error) from error


def _unusable(path: Path, error: Exception) -> ConfigError:
    said = f"{type(error).__name__}: {error}".splitlines()[0]
    return ConfigError(f"transformers {_transformers().__version__} cannot use {path} ({said:.200}): correct it there")


def _model(path: Path, config: Any, dtype: torch.dtype) -> nn.Module:
    for kind in _candidates(config):
        for attention in ("sdpa", "eager"):
            try:
                made: nn.Module = kind(config, dtype=dtype, attn_implementation=attention)
            except ValueError:  # an AutoModel that does not know the config, a model without SDPA
                continue
            except Exception as error:
                raise _unusable(path, error) from error
            return made
    raise ConfigError(f"transformers has no class to train a {config.model_type}: write a function that builds the model")


def _candidates(config: Any) -> list[Callable[..., nn.Module]]:
    transformers = _transformers()
    names = config.architectures if isinstance(config.architectures, list) else []
    named = [getattr(transformers, name, None) for name in names if isinstance(name, str)]
    exact = [kind._from_config for kind in named if kind is not None and hasattr(kind, "_from_config")]
    return [*exact, *(getattr(transformers, name).from_config for name in _AUTO_CLASSES if hasattr(transformers, name))]


# -- inputs ----------------------------------------------------------------------------------------------------------------------


def _inputs(model: Any, batch: int, seq: int) -> dict[str, Any]:
    """What the model's forward takes, on the GPU, with labels where it takes them."""
    takes = inspect.signature(model.forward).parameters
    _refuse_several_senses(model, takes)
    found: dict[str, Any] = _main_input(model, batch, seq)
    if "labels" in takes and "CTC" not in type(model).__name__:  # how much CTC keeps depends on the labels themselves
        found["labels"] = _labels(model, batch, seq, found)
    if "use_cache" in takes:
        found["use_cache"] = False
    return found


def _refuse_several_senses(model: Any, takes: Iterable[str]) -> None:
    """Text alone would leave out what the model sees or hears."""
    other = [name for name in ("pixel_values", "input_features", "input_values") if name in takes]
    if model.main_input_name == "input_ids" and other:
        raise ConfigError(
            f"a {type(model).__name__} takes {other[0]} in addition to text, and only you know how much of each: write a function "
            "that builds the step, and give memfit FILE.py:FUNCTION"
        )


def _main_input(model: Any, batch: int, seq: int) -> dict[str, Any]:
    name, config = model.main_input_name, model.config
    match name:
        case "input_ids":
            return {name: _tokens(model, batch, seq)}
        case "pixel_values":
            size = getattr(config, "image_size", None) or 224
            height, width = (size, size) if isinstance(size, int) else size
            return {name: _noise(model, batch, getattr(config, "num_channels", 3), height, width)}
        case "input_features":
            bins, frames = getattr(config, "num_mel_bins", 80), 2 * getattr(config, "max_source_positions", 1500)
            return {name: _noise(model, batch, bins, frames)}
        case "input_values":
            return {name: _noise(model, batch, SAMPLES)}
    raise ConfigError(
        f"memfit does not know what to give a {type(model).__name__}, whose input is {name!r}: write a function that builds the "
        "step, and give memfit FILE.py:FUNCTION"
    )


SAMPLES = 160_000
"""Ten seconds of sound, for models that listen to waves."""


def _tokens(model: Any, batch: int, length: int) -> Tensor:
    return torch.randint(0, model.config.get_text_config(decoder=True).vocab_size, (batch, length), device="cuda")


def _noise(model: Any, *shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=next(model.parameters()).dtype)


def _labels(model: Any, batch: int, seq: int, inputs: dict[str, Tensor]) -> Tensor:
    kind = type(model).__name__
    if "Classification" in kind and "Token" not in kind:
        return torch.zeros(batch, dtype=torch.long, device="cuda")
    if "input_ids" in inputs and not model.config.is_encoder_decoder:
        return inputs["input_ids"]
    return _tokens(model, batch, seq)


def _loss(outputs: Any) -> Tensor:
    """What the model computed; without labels, the sum of what it gave."""
    loss = getattr(outputs, "loss", None)
    if loss is not None:
        return loss  # type: ignore[no-any-return]
    first = next(value for value in outputs.values() if isinstance(value, Tensor) and value.is_floating_point())
    return first.float().sum()
