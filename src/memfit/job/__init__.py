"""What is asked, once: the same words on the command line, in Python, in the cache and in other processes.

::

    Subject         subject.py      a model by name, a Hugging Face config, or a function
    Recipe          recipe.py       how a model is trained, flat; refused when it cannot be
    PredictOptions  options.py      on which GPU, how many, how many steps, with which torch and allocator
        │           states.py       weights, gradients and optimizer state of one GPU, from sizes alone
        │           axes.py         several values of each, and their combinations
        v
    Configuration   configuration.py ──> training.py, parallel_training.py: the training step that a recipe is
        │
        v
    Cell            cell.py         a configuration and its CellResult, or the error in place of it

Plain data: torch is imported when a step is built, not before.
"""

from memfit.job.cell import Cell, CellResult
from memfit.job.configuration import Configuration
from memfit.job.options import PredictOptions
from memfit.job.recipe import Recipe
from memfit.job.subject import Subject

__all__ = ["Cell", "CellResult", "Configuration", "PredictOptions", "Recipe", "Subject"]
