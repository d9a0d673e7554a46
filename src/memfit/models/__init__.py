"""Models by name, and any Hugging Face architecture from its config: no code and no weights needed.

::

    "llama3-8b" ──> find_model ──> ModelConfig ──> transformer/            a small transformer in torch
                     config.py      config.py
    config.json ──> config.py ──> huggingface.py ──> transformers' own class, and a batch made for it

    adapters.py      LoRA beside the layers of either, and frozen weights in four bits
    adamw8bit.py     an optimizer whose state is in eight bits

How a model is trained is a ``memfit.job.Recipe``. Configs are plain data: torch is imported when a model is built, not before.
"""

from memfit.models.config import MODELS, ModelConfig, find_model

__all__ = ["MODELS", "ModelConfig", "find_model"]
