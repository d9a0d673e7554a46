"""``SACEstimator``, with PyTorch's methods: what running each operator again would cost and free, without a GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Self

import torch

from memfit.compat.estimators.curves import trade_off
from memfit.compat.estimators.decisions import greedy_order
from memfit.compat.estimators.display import print_operators, print_order
from memfit.compat.estimators.operations import ModuleCall, OperationLog, leaves_to_distributed_tensors
from memfit.compat.estimators.prices import MODES, OperatorPrices, check_mode
from memfit.compat.estimators.sac_data import MSPS, SACGreedyOrderMeta, SACStats, SACTradeOffStats
from memfit.compat.mod_tracker import ModTracker
from memfit.errors import ConfigError
from memfit.torch_compat.dispatch import TorchDispatchMode, tree_leaves

__all__ = ["MSPS", "SACEstimator", "SACGreedyOrderMeta", "SACStats", "SACTradeOffStats"]


class SACEstimator(TorchDispatchMode):
    """What selective activation checkpointing of each module would cost and free.

    ::

        estimator = SACEstimator(gpu="H100-80GB")
        with FakeTensorMode(), estimator("operator-level-cost-model"):
            loss = model(batch).sum()
        estimator.sac_mod_stats["Model.layers.0"]          # its operators: bytes, milliseconds, views, random, in place
        estimator.pwlf_sac_tradeoff_curve()
        estimator.sac_mod_tradeoff_stats["Model.layers.0"].tradeoff_curve
        estimator.display_modulewise_sac_stats(depth=2)

    Modules with modules inside have entries. Fake tensors are not needed, and every tensor is priced as if it were on the GPU.
    Entering again begins anew.
    """

    def __init__(self, gpu: str = "H200") -> None:
        super().__init__()
        self._prices = OperatorPrices(gpu)
        self._mode = MODES[1]
        self._modules = ModTracker()
        self._log = OperationLog()
        self._open: list[ModuleCall | None] = []
        self._saving = torch.autograd.graph.saved_tensors_hooks(self._note_saved, lambda tensor: tensor)
        self.sac_mod_stats: dict[str, SACStats] = {}
        self.sac_mod_tradeoff_stats: dict[str, SACTradeOffStats] = {}
        self.sac_mod_greedy_order_meta: dict[str, SACGreedyOrderMeta] = {}
        self.held_inputs: dict[str, int] = {}
        """Bytes that a module's checkpoint would hold in its inputs, and that nothing holds without it."""

    def __call__(self, estimate_mode_type: str) -> Self:
        """``operator-level-benchmark`` or ``operator-level-cost-model``: both are priced from measurements."""
        self._mode = check_mode(estimate_mode_type)
        return self

    # -- recording -----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._log, self._open = OperationLog(), []
        for found in (self.sac_mod_stats, self.sac_mod_tradeoff_stats, self.sac_mod_greedy_order_meta, self.held_inputs):
            found.clear()
        self._modules = ModTracker()
        self._modules.register_user_hooks(pre_fw_hook=self._begin_module, post_fw_hook=self._end_module)
        self._modules.__enter__()
        self._saving.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._saving.__exit__(*error)
        self._modules.clear_user_hooks()
        self._modules.__exit__(*error)
        self._summarise()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if leaves_to_distributed_tensors(types):
            return NotImplemented
        if self._modules._computes_shapes:
            return func(*args, **(kwargs or {}))
        before = self._log.storages_of((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._log.add(func, args, kwargs, result, self._prices.milliseconds(func, args, result), before)
        return result

    def _begin_module(self, module: torch.nn.Module, args: Any) -> None:
        name = self._modules.get_known_fqn(module) or ""
        is_inside_itself = any(call is not None and call.name == name for call in self._open)
        if self._modules.is_bw or is_inside_itself or next(module.children(), None) is None:
            self._open.append(None)
            return
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        self._open.append(
            ModuleCall(
                name=name,
                first=len(self._log.operations),
                first_save=len(self._log.saves),
                has_tensor_inputs=bool(tensors),
                inputs=self._log.storages_of(tensors),
            )
        )

    def _end_module(self, module: torch.nn.Module, args: Any, outputs: Any) -> None:
        call = self._open.pop()
        if call is not None:
            call.last, call.last_save = len(self._log.operations), len(self._log.saves)
            call.outputs = self._log.storages_of(outputs)
            self._log.calls.append(call)

    def _note_saved(self, tensor: torch.Tensor) -> torch.Tensor:
        self._log.save(tensor)
        return tensor

    def _summarise(self) -> None:
        calls: dict[str, list[ModuleCall]] = defaultdict(list)
        for call in self._log.calls:
            calls[call.name].append(call)
        for name, of_module in calls.items():
            stats = _stats_of(self._log, of_module)
            self.sac_mod_stats[name] = stats
            self.sac_mod_greedy_order_meta[name] = greedy_order(stats)
            inputs = frozenset().union(*(call.inputs for call in of_module)) - self._log.saved
            self.held_inputs[name] = sum(self._log.sizes.get(number, 0) for number in inputs)

    # -- answers -------------------------------------------------------------------------------------------------------------

    def pwlf_sac_tradeoff_curve(self, n_segments: int | None = 2, save_tradeoff_graphs: bool = False) -> None:
        """Fills ``sac_mod_tradeoff_stats``: each module's curve and its best fit of straight pieces, all of them with ``None``.

        With ``save_tradeoff_graphs`` a picture of each goes into the folder ``tradeoff_graphs``; that needs matplotlib.
        """
        if n_segments is not None and n_segments < 1:
            raise ConfigError(f"a curve has at least one piece, not {n_segments}")
        for name, stats in self.sac_mod_stats.items():
            found = self.sac_mod_tradeoff_stats[name] = trade_off(stats, n_segments)
            if save_tradeoff_graphs:
                _save_picture(name, found)

    def display_sac_stats(self, sac_stats: SACStats, print_tabular: bool = False) -> None:
        """Prints a module's operators."""
        print_operators(sac_stats, print_tabular)

    def display_sac_tradeoff_stats(
        self, greedy_order_meta: SACGreedyOrderMeta, sac_stats: SACStats, print_tabular: bool = False
    ) -> None:
        """Prints a module's decisions in their order."""
        print_order(greedy_order_meta, sac_stats, print_tabular)

    def display_modulewise_sac_stats(self, depth: int = 2, print_tabular: bool = False) -> None:
        """Prints both for modules up to ``depth`` names deep."""
        for name, stats in self.sac_mod_stats.items():
            if name.count(".") + 1 <= depth:
                print(f"Module: {name}")
                self.display_sac_stats(stats, print_tabular)
                print(f"AC Trade-off for Module: {name} MSPS = Memory/Runtime")
                self.display_sac_tradeoff_stats(self.sac_mod_greedy_order_meta[name], stats, print_tabular)


def _stats_of(log: OperationLog, calls: Sequence[ModuleCall]) -> SACStats:
    """The operators of all calls of a module, one call after the other."""
    stats = SACStats([], [], [], [], [], [], [], force_store_random=not all(call.has_tensor_inputs for call in calls))
    for call in calls:
        makers: dict[int, int] = {}
        held_outside, num_run_again = call.outputs & log.saved, log.num_run_again(call)
        for position, operation in enumerate(log.operations[call.first : call.last]):
            i = len(stats.func_names)
            stats.func_names.append(operation.name)
            stats.runtimes.append(operation.milliseconds if position < num_run_again else 0.0)
            stats.memory.append(sum(size for number, size in operation.made.items() if number not in held_outside))
            makers |= dict.fromkeys(operation.made, i)
            if operation.is_view:
                stats.view_like_ops.append(i)
            if operation.is_random:
                stats.rand_ops.append(i)
            if operation.touched & log.saved:
                stats.saved_autograd_ops.append(i)
            if operation.is_in_place:
                stats.inplace_ops.append((i, min((makers[number] for number in operation.touched if number in makers), default=i)))
    return stats


def _save_picture(name: str, found: SACTradeOffStats) -> None:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("save_tradeoff_graphs=True needs matplotlib: pip install matplotlib") from error
    import pathlib

    folder = pathlib.Path("tradeoff_graphs")
    folder.mkdir(exist_ok=True)
    figure, axes = plt.subplots()
    axes.plot(list(found.tradeoff_curve), list(found.tradeoff_curve.values()), "x", label="policies")
    starts = list(zip(found.fit_breaks, found.slopes, found.intercepts, strict=False))
    corners = [slope * x + intercept for x, slope, intercept in starts]
    if starts:
        corners.append(starts[-1][1] * found.fit_breaks[-1] + starts[-1][2])
    axes.plot(found.fit_breaks[: len(corners)], corners, "-", label="fit")
    axes.set(xlabel="share of memory discarded", ylabel="share of time that runs again", title=name)
    axes.legend()
    figure.savefig(folder / f"{name}.png")
    plt.close(figure)
