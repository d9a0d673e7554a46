"""A Hugging Face ``config.json``, read without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memfit.errors import ConfigError
from memfit.reading import read_regular

_CONTEXT_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length", "max_target_positions")
_WITHOUT_CONTEXT = 512
"""Where a config has none, as T5's."""


def read_config(path: Path) -> dict[str, Any]:
    """A Hugging Face ``config.json``."""
    try:
        config = json.loads(read_regular(path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read as JSON ({error}): give the config.json of a Hugging Face model") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ConfigError(f"{path} has no model_type: give the config.json of a Hugging Face model")
    return config


def context_of(path: Path) -> int:
    """The longest sequence that the model was made for."""
    config = read_config(path)
    nested = [part for part in (config.get("text_config"), config.get("decoder")) if isinstance(part, dict)]
    for part in (config, *nested):
        found = [part[name] for name in _CONTEXT_NAMES if isinstance(part.get(name), int) and part[name] > 0]
        if found:
            return int(found[0])
    return _WITHOUT_CONTEXT
