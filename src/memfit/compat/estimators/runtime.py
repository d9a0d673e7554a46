"""``RuntimeEstimator``, with PyTorch's methods: milliseconds of every module's forward and backward, without a GPU.

PyTorch's has two ways to estimate, both of which need CUDA. Here both names are accepted, and both mean ``memfit.timing``.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any, Final, Self

import torch

from memfit.compat.mod_tracker import GLOBAL, ModTracker
from memfit.hardware import find_gpu
from memfit.phantom.clock.describe import describe
from memfit.timing import Call, Chip, Operand, Settings, chip_of, price
from memfit.timing.collectives import all_gather_seconds, all_reduce_seconds
from memfit.timing.links import usual_interconnect
from memfit.torch_compat.dispatch import TorchDispatchMode
from memfit.torch_compat.fake_tensors import device_query

MODES: Final = ("operator-level-benchmark", "operator-level-cost-model")
_COLLECTIVES: Final = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


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
        self._chip: Chip = chip_of(find_gpu(gpu))
        self._links = usual_interconnect(self._chip)
        self._mode = MODES[1]
        self._modules = ModTracker()
        self._known: dict[Call, float] = {}
        self.mod_runtimes: dict[str, dict[str, float]] = _empty()
        """Milliseconds by module and by ``fw`` and ``bw``, modules inside included."""
        self.mod_fw_pre_order: list[str] = []
        self.mod_bw_pre_order: list[str] = []
        self.mod_fw_post_order: list[str] = []
        self.mod_bw_post_order: list[str] = []
        self.total_runtime = 0.0
        """Milliseconds of all kernels, one after the other."""

    def __call__(self, estimate_mode_type: str) -> Self:
        """``operator-level-benchmark`` or ``operator-level-cost-model``: both are priced from measurements."""
        if estimate_mode_type not in MODES:
            raise NotImplementedError(f"cannot estimate by {estimate_mode_type!r}: {' and '.join(MODES)} are known")
        self._mode = estimate_mode_type
        return self

    def __enter__(self) -> Self:
        self.total_runtime, self.mod_runtimes = 0.0, _empty()
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
        result = func(*args, **(kwargs or {}))
        if func is not device_query and hasattr(func, "_schema"):
            self._add(1000 * self._seconds(func, args, result))
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

    def _seconds(self, func: Any, args: Any, result: Any) -> float:
        if func.namespace in _COLLECTIVES:
            return self._collective_seconds(func, args)
        schema = func._schema
        if schema.returns and all(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns):
            return 0.0  # it looks at a tensor in another way
        call = _on_gpu(describe(func, args, result))
        known = self._known.get(call)
        if known is None:
            settings = Settings(allow_tf32=bool(torch.backends.cuda.matmul.allow_tf32))
            known = self._known[call] = price(call, self._chip, settings).seconds
        return known

    def _collective_seconds(self, func: Any, args: Any) -> float:
        """Over the links, as ranks of the world that is there."""
        import torch.distributed as dist

        call = _on_gpu(describe(func, args, None))
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        size = max((tensor.size_bytes for tensor in call.inputs), default=0)
        seconds = all_reduce_seconds if "reduce" in call.name and "scatter" not in call.name else all_gather_seconds
        return seconds(size, ranks, self._links) if "wait" not in call.name else 0.0


def _empty() -> dict[str, dict[str, float]]:
    return defaultdict(lambda: defaultdict(float))


def _on_gpu(call: Call) -> Call:
    return Call(call.operator, tuple(map(_moved, call.arguments)), tuple(map(_moved, call.results)))


def _moved(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_moved, argument))
    return replace(argument, place="") if isinstance(argument, Operand) else argument
