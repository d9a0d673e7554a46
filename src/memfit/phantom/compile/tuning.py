"""The memory that Inductor's kernels take while they are timed, at their first launch.

::

    triton_poi_fused_gelu_2.run(buf1, buf3)      first launch: each of its configurations is timed, if there are several
      ├─ a buffer as large as the L2 cache,      written over between two launches
      └─ copies of what the kernel changes       each launch begins with the same data; in backward only where that raises no peak
    triton_poi_fused_gelu_2.run(buf1, buf3)      later launches: the fastest, which takes nothing

How many configurations a kernel has is asked of torch's own heuristics. To a reduction that fills the GPU more than once torch adds
another one if it uses many registers, which only Triton's compiler knows: here it is taken to do so, as nearly all did that were
looked at on an H200. Source: torch/_inductor/runtime/triton_heuristics.py and benchmarking.py.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from memfit.phantom.compile.allocation import Origin, allocating_for
from memfit.phantom.target import Target
from memfit.phantom.values.assumptions import Assumptions
from memfit.torch_compat.compiler import CompilerParts
from memfit.torch_compat.patches import Patches

_HEURISTICS = "triton_heuristics"

REGISTERS, THREADS, THREADS_OF_WARP = 65536, 2048, 32
"""Of a multiprocessor."""
MANY_REGISTERS = REGISTERS // THREADS + 1
SMALLEST_REDUCTION = 64
"""A reduction of as many elements at a time, or of fewer, is not made smaller."""


@dataclass(frozen=True)
class Configurations:
    """Of one kernel: what torch's heuristics say of how it is timed."""

    number: int
    mutated: frozenset[str]
    """Names of arguments that the kernel changes."""
    spares_memory: bool
    """Copies are made on the host where they would raise the peak."""
    may_grow: bool = False
    """It is a reduction to which torch adds a configuration if it uses many registers."""
    is_searched: bool = False
    """Further configurations are tried after the first ones, one by one."""

    @property
    def num_timed(self) -> int:
        number = self.number + self.may_grow + self.is_searched
        return number if number > 1 else 0


class Tuner:
    """Knows which kernels have been timed: one that two graphs share is timed once."""

    def __init__(self, parts: CompilerParts, target: Target, assumptions: Assumptions) -> None:
        self._parts, self._assumptions = parts, assumptions
        self._cache_bytes, self._num_sms = target.gpu.l2_cache_bytes, target.gpu.num_sms
        self._timed: set[str] = set()

    def install(self, patches: Patches) -> None:
        heuristics = self._parts.triton_heuristics
        patches.replace(heuristics, "cached_autotune", self._describe)
        if not self._parts.has_triton:
            patches.replace(heuristics, "Config", _Config)
            patches.replace(heuristics, "InductorConfig", _Config)
            patches.replace(heuristics.triton, "Config", _Config)

    def first_launch(self, name: str, source: str, args: Sequence[Any]) -> None:
        """Takes and gives back what timing the kernel takes."""
        if source in self._timed and not self._parts.grows_again:
            return
        try:
            parameters, found = self._read(source)
        except Exception as error:  # of torch's heuristics, which take what Inductor has written
            self._assumptions.add(f"{name}: how it is tuned is not known, and no memory is counted for it ({error})")
            return
        if source in self._timed and not found.may_grow:
            return
        self._timed.add(source)
        mutated = [value for parameter, value in zip(parameters, args, strict=False) if parameter in found.mutated]
        # Without copies, each round takes the same as the first.
        for _ in range(found.num_timed if mutated else min(found.num_timed, 1)):
            with allocating_for(Origin(f"{name} (timed)", "")):
                self._time(found, mutated)

    def _time(self, found: Configurations, mutated: Sequence[torch.Tensor]) -> None:
        copied = _within_budget(mutated) if found.spares_memory else list(mutated)
        _copy(copied)
        flushed = torch.empty(self._cache_bytes // 4, dtype=torch.int, device="cuda")
        _copy(copied)
        del flushed

    def _read(self, source: str) -> tuple[list[str], Configurations]:
        function, call = _heuristics_call(source)
        names = _Names({**vars(builtins), **vars(self._parts.hints), "OrderedSet": set, _HEURISTICS: self._parts.triton_heuristics})
        found = eval(compile(ast.Expression(call), "<heuristics>", "eval"), {}, names)
        return [argument.arg for argument in function.args.args], found

    def _describe(
        self,
        size_hints: Any,
        configs: Any,
        triton_meta: Any,
        heuristic_type: Any,
        *args: Any,
        inductor_meta: Any = None,
        **kwargs: Any,
    ) -> Configurations:
        """In the place of torch's own, which makes a kernel that can be launched."""
        meta = inductor_meta or {}
        distinct = self._parts.distinct_configurations(size_hints, configs, heuristic_type, meta)
        is_reduction = self._parts.is_reduction(heuristic_type) and size_hints and not meta.get("persistent_reduction")
        return Configurations(
            len(distinct),
            frozenset((*meta.get("mutated_arg_names", ()), *triton_meta.get("restore_value", ()))),
            bool(meta.get("optimize_mem", True)),
            bool(is_reduction and any(_fills_more_than_once(config, size_hints, self._num_sms) for config in distinct)),
            bool(meta.get("coordinate_descent_tuning", False)),
        )


class _Config:
    """In the place of Triton's, where it is not installed."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 2, **others: Any) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages


class _Names(dict[str, Any]):
    """What a kernel's source may name; what says nothing about its configurations is nothing."""

    def __missing__(self, name: str) -> Any:
        return _nothing


def _fills_more_than_once(config: Any, size_hints: dict[str, int], num_sms: int) -> bool:
    """Are there more blocks than the GPU runs at a time, if threads use one register more than allows all of them to run?"""
    if math.prod(value for name, value in config.kwargs.items() if name.startswith("R")) <= SMALLEST_REDUCTION:
        return False
    num_blocks = -(-size_hints["x"] // config.kwargs.get("XBLOCK", 1))
    return bool(num_blocks > max(REGISTERS // (MANY_REGISTERS * THREADS_OF_WARP * config.num_warps), 1) * num_sms)


def _nothing(*args: Any, **kwargs: Any) -> None: ...


def _heuristics_call(source: str) -> tuple[ast.FunctionDef, ast.expr]:
    """The kernel, and ``triton_heuristics.pointwise(...)`` above it."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).startswith(_HEURISTICS):
                    return node, decorator
    raise ValueError("it has no heuristics")


def _within_budget(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Those that can be copied on the GPU without a new peak; the others are copied to the host."""
    budget = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated() if tensors else 0
    chosen = []
    for tensor in tensors:
        size = storage_length(tensor) * tensor.element_size()
        if size <= budget:
            budget -= size
            chosen.append(tensor)
    return chosen


def _copy(tensors: Sequence[torch.Tensor]) -> None:
    """Copies that live until the launch is over."""
    copies = [torch.as_strided(tensor, (storage_length(tensor),), (1,)).clone() for tensor in tensors]
    del copies


def storage_length(tensor: torch.Tensor) -> int:
    """How many elements lie between the first and the last of a tensor, these included."""
    return sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
