"""PyTorch's estimators, by their own names.

::

    torch.distributed._tools.runtime_estimator.RuntimeEstimator -> memfit.compat.RuntimeEstimator      runtime.py
"""

from memfit.compat.estimators.runtime import RuntimeEstimator

__all__ = ["RuntimeEstimator"]
