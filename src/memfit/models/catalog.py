"""The models that memfit knows by name: those of ``data/models.toml``."""

from __future__ import annotations

import difflib
from typing import Any, Final

from memfit.data import FOLDER, parse_table, read_toml
from memfit.errors import ConfigError
from memfit.models.config import ModelConfig

_FACTS: Final = read_toml(FOLDER / "models.toml")


def _config(name: str, table: dict[str, Any]) -> ModelConfig:
    """A model of the file, with the keys of its family."""
    own = _FACTS["families"].get(table.get("family"), {}) | table
    own["source"] = f"config.json of huggingface.co/{own.pop('hub')}"
    own.pop("family", None)
    return parse_table(ModelConfig, {"name": name, **own}, f"models.toml, {name}")


MODELS: Final = {name: _config(name, table) for name, table in _FACTS["models"].items()}


def find_model(name: str) -> ModelConfig:
    """The model of that name, forgivingly: ``llama3-8b``, ``Llama-3-8B``, ``meta-llama/Llama-3.1-8B``, ``Qwen3 30B A3B``."""
    wanted = _plain(name.rsplit("/", 1)[-1])
    for known, model in _FACTS["other_names"].items():
        if _plain(known) == wanted:
            return MODELS[model]
    for config in MODELS.values():
        if wanted in (_plain(config.name), _plain(config.source.rsplit("/", 1)[-1])):
            return config
    close = difflib.get_close_matches(name.lower(), [*MODELS, *_FACTS["other_names"]], n=3)
    advice = f"did you mean {' or '.join(close)}? " if close else ""
    raise ConfigError(
        f"unknown model {name!r}: {advice}memfit knows {', '.join(MODELS)}. For any other, give the config.json of its repository "
        "with --hf, or hf= in Python."
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "").removeprefix("meta").removesuffix("hf")
