"""The former name of ``memfit.compare``, kept for code that imports it."""

from memfit.compare import Cell, Comparison, Figures, compare

__all__ = ["Cell", "Comparison", "Figures", "compare"]
