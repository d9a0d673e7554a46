"""Hugging Face configs with impossible values: each is refused in a line, or the model is made."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import torch

from attack.mutations import NUMBERS, damage_bytes, damage_plain
from attack.protocol import Attack, Fell, Limits, Tried
from memfit.errors import MemfitError

SOUND: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
    },
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 64},
    "bert": {"architectures": ["BertForMaskedLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
}
ODD = (*NUMBERS, 10**6, 10**9, 10**18, float("nan"), "2", 2.5, True, None, [2], "__import__('os').system('true')", "../../etc")


class HostileConfigs(Attack):
    name = "configs"
    promise = "a config of Hugging Face with impossible values is refused in a line, and runs nothing"
    limits = Limits(cpu_seconds=30.0, memory_bytes=6 * 2**30)

    def prepare(self, folder: Path) -> None:
        torch.set_num_threads(1)
        import transformers

        from memfit.models import huggingface

        transformers.logging.set_verbosity_error()
        self.models: Any = huggingface
        for kind in SOUND:  # later nothing may be loaded any more
            if not self._make(folder / "config.json", json.dumps({"model_type": kind, **SOUND[kind]}).encode()):
                raise Fell(f"the sound {kind} was refused")

    def attempt(self, chance: Random, folder: Path) -> Tried:
        kind = chance.choice(sorted(SOUND))
        config = {"model_type": kind, **SOUND[kind]}
        way = chance.random()
        if way < 0.6:
            for _ in range(chance.choice((1, 1, 2))):
                config[chance.choice(sorted(config))] = chance.choice(ODD)
            data = json.dumps(config).encode()
        else:
            data = (
                damage_bytes(chance, json.dumps(config).encode())
                if way < 0.7
                else json.dumps(damage_plain(chance, config)).encode()
            )
        return Tried(files=1, refused=not self._make(folder / "config.json", data))

    def _make(self, path: Path, data: bytes) -> bool:
        path.write_bytes(data)
        try:
            with torch.device("meta"):
                self.models._model(path, self.models._config(path), torch.bfloat16)
        except MemfitError as error:
            if "\n" in str(error):
                raise Fell(f"it was refused in more than a line: {error}") from error
            return False
        return True


ATTACK = HostileConfigs()
