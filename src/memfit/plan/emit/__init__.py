"""A plan that was searched, in the words of what trains: a file and the line that starts it.

::

    Plan.emit(target)  ──>  targets.py ─┬─> python, fsdp2   torch code, as plan.code()
        (memfit plan --emit)            ├─> torchtitan.py   the file of its job, TOML
                                        ├─> accelerate.py   its config file, YAML
                                        └─> trainer.py      transformers' TrainingArguments, Python
                                              │
                            asking.py ────────┘   the recipe; what a target cannot say is refused, and named

Imports none of the libraries that it writes for: ``tests/plan/emit`` has each of them read what is written.
"""

from memfit.plan.emit.targets import TARGETS, emit

__all__ = ["TARGETS", "emit"]
