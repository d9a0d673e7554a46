"""``RuntimeEstimator``, with PyTorch's methods: milliseconds of every module's forward and backward, without a GPU.

PyTorch's has two ways to estimate, both of which need CUDA. Here both names are accepted, and both mean ``memfit.timing``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Self

import torch

from memfit.compat.estimators.operations import leaves_to_distributed_tensors
from memfit.compat.estimators.prices import MODES, OperatorPrices, check_mode, libraries_of
from memfit.compat.mod_tracker import GLOBAL, ModTracker
from memfit.torch_compat.dispatch import TorchDispatchMode


class RuntimeEstimator(TorchDispatchMode):
    """What a step's kernels take on a GPU, summed by module.

    ::

        estimator = RuntimeEstimator(gpu="H100-80GB")
        with FakeTensorMode(), estimator("operator-level-cost-model"):
            model(batch).sum().backward()
        estimator.mod_runtimes["Model.layers.0"]["fw"]     # milliseconds
        estimator.display_modulewise_stats(depth=2)

    Every tensor is taken to be on the GPU, wherever it is. The host's own time is not in it: ``memfit.predict`` has a clock.
    """

    def __init__(self, gpu: str = "H200") -> None:
        super().__init__()
        self._prices, self._gpu = OperatorPrices(gpu), gpu
        self._mode = MODES[1]
        self._modules, self._libraries = ModTracker(), libraries_of(gpu)
        self.mod_runtimes: dict[str, dict[str, float]] = _empty()
        """Milliseconds by module and by ``fw`` and ``bw``, modules inside included."""
        self.mod_fw_pre_order: list[str] = []
        self.mod_bw_pre_order: list[str] = []
        self.mod_fw_post_order: list[str] = []
        self.mod_bw_post_order: list[str] = []
        self.total_runtime = 0.0
        """Milliseconds of all kernels, one after the other."""
        self.workspace_bytes = 0
        """Workspaces that cuBLAS and similar libraries allocate on the GPU and keep. No tensor of the run holds them."""

    def __call__(self, estimate_mode_type: str) -> Self:
        """``operator-level-benchmark`` or ``operator-level-cost-model``: both are priced from measurements."""
        self._mode = check_mode(estimate_mode_type)
        return self

    def __enter__(self) -> Self:
        self.total_runtime, self.mod_runtimes, self.workspace_bytes = 0.0, _empty(), 0
        self._modules, self._libraries = ModTracker(), libraries_of(self._gpu)
        orders = (self.mod_fw_pre_order, self.mod_fw_post_order, self.mod_bw_pre_order, self.mod_bw_post_order)
        for order in orders:
            order.clear()
        hooks = [self._noting(order) for order in orders]
        self._modules.register_user_hooks(*hooks)
        self._modules.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._modules.clear_user_hooks()
        self._modules.__exit__(*error)
        print(f"Estimated ({self._mode}) total_time: {self.total_runtime:.3f} ms")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if leaves_to_distributed_tensors(types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if not self._modules._computes_shapes:
            self._add(self._prices.milliseconds(func, args, result))
            self.workspace_bytes += sum(self._libraries.newly_taken(func, args))
        return result

    def display_modulewise_stats(self, depth: int = 2) -> None:
        """Prints the orders of modules and the milliseconds of those up to ``depth`` names deep."""
        for label, names in (("Pre-Forward", self.mod_fw_pre_order), ("Pre-Backward", self.mod_bw_pre_order)):
            print(f"{label} Execution Order: ")
            print("\n".join(name for name in names if name.count(".") + 1 <= depth))
        for name, spent in self.mod_runtimes.items():
            if name.count(".") + 1 <= depth:
                print(f"{name} fw: {spent.get('fw', 0.0):.3f}ms bw: {spent.get('bw', 0.0):.3f}ms")

    def _noting(self, order: list[str]) -> Any:
        def note(module: torch.nn.Module, *_: Any) -> None:
            order.append(self._modules.get_known_fqn(module) or "")

        return note

    def _add(self, milliseconds: float) -> None:
        if not milliseconds:
            return
        self.total_runtime += milliseconds
        way = "bw" if self._modules.is_bw else "fw"
        for name in self._modules.parents - {GLOBAL}:
            self.mod_runtimes[name][way] += milliseconds


def _empty() -> dict[str, dict[str, float]]:
    return defaultdict(lambda: defaultdict(float))
