"""Models by name, and training steps made of them: no code and no weights needed.

::

    "llama3-8b" ──> catalog.py ──> ModelConfig ──> transformer.py ─┐
                                    config.py                      ├─> workload.py ──> training.py ──> step(), for memfit.predict
    config.json ──> huggingface.py ──> transformers' own class  ───┘                     ^
     hf_config.py                                                                        │
    Recipe ── batch, seq, precision, optimizer, strategy, ... ───────────────────────────┘
     recipe.py, settings.py: the words are those of memfit.choices

``Recipe(model="llama3-8b", strategy="full_shard").build`` is what ``memfit.predict`` takes. Configs and recipes are plain data:
torch is imported when a step is built, not before.
"""

from memfit.models.catalog import MODELS, find_model
from memfit.models.config import ModelConfig
from memfit.models.recipe import Recipe

__all__ = ["MODELS", "ModelConfig", "Recipe", "find_model"]
