"""Models by name, and training steps made of them: no code and no weights needed.

::

    "llama3-8b" ──> catalog.py ──> ModelConfig ──> transformer/  ──┐
                                    config.py                      ├─> workload.py ──> training.py ──> step(), for memfit.predict
    config.json ──> huggingface.py ──> transformers' own class  ───┘                   parallel_training.py: with memfit.parallel
     hf_config.py                                                                        ^
    Recipe ── batch, seq, precision, optimizer, strategy, ... ───────────────────────────┘
     recipe.py, settings.py: the words are those of memfit.choices
     degrees.py: how many GPUs share what, and what a model cannot do

``Recipe(model="llama3-8b", strategy="full_shard").build`` is what ``memfit.predict`` takes. Configs and recipes are plain data:
torch is imported when a step is built, not before.
"""

from memfit.models.catalog import MODELS, find_model
from memfit.models.config import ModelConfig
from memfit.models.recipe import Recipe

__all__ = ["MODELS", "ModelConfig", "Recipe", "find_model"]
