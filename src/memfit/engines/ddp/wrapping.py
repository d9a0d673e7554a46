"""``DistributedDataParallel`` around a model. On the phantom its C++ reducer, which needs data, is replaced by one in Python.

::

    construction       flat buckets, in the order of the parameters
    backward           a gradient is copied into its bucket, or becomes a view of it
                       a full bucket is reduced, by a communication hook if there is one; what the hook returns lives as long as
                       the bucket needs it: until the next one
    second forward     buckets once more, in the order in which gradients came (never where unused parameters are looked for);
                       of a static graph in the third, since the first backward only counts

Facts from torch/csrc/distributed/c10d/reducer.cpp. Every method that torch's own reducer has is here: DDP may call any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel import distributed as data_parallel

from memfit.engines.ddp import replicas
from memfit.engines.engine import WrapConfig
from memfit.errors import ConfigError
from memfit.torch_compat.distributed import bucket_assignment
from memfit.torch_compat.patches import Patches


class Bucket:
    """Gradients that are reduced together, in one flat tensor. The methods below are what a communication hook asks of it."""

    def __init__(
        self, number: int, params: Sequence[torch.Tensor], *, is_last: bool, is_sparse: bool, dtype: torch.dtype | None
    ) -> None:
        self.number, self.params, self.is_last_one, self.is_sparse = number, list(params), is_last, is_sparse
        first, size = self.params[0], 0 if is_sparse else sum(param.numel() for param in params)
        self.flat = torch.empty(size, dtype=dtype or first.dtype, device=first.device)
        self.reduced: Any = None
        """What the last reduction gave."""
        self._offsets: dict[int, int] = {}
        for param in self.params:
            self._offsets[id(param)] = sum(map(torch.Tensor.numel, self.params[: len(self._offsets)]))
        self.pending: set[int] = set()

    def view_of(self, param: torch.Tensor) -> torch.Tensor:
        offset = self._offsets[id(param)]
        return self.flat[offset : offset + param.numel()].view(param.shape)

    def buffer(self) -> torch.Tensor:
        return self.params[0].grad if self.is_sparse and self.params[0].grad is not None else self.flat

    def set_buffer(self, tensor: torch.Tensor) -> None:
        self.flat = tensor

    def index(self) -> int:
        return self.number

    def is_last(self) -> bool:
        return self.is_last_one

    def gradients(self) -> list[torch.Tensor]:
        return [self.buffer()] if self.is_sparse else [self.view_of(param) for param in self.params]

    def parameters(self) -> list[torch.Tensor]:
        return self.params


class Reducer:
    """Takes the place of ``torch.distributed.Reducer``."""

    def __init__(
        self,
        params: list[torch.Tensor],
        bucket_indices: list[list[int]],
        limits: list[int],
        process_group: Any,
        expect_sparse: list[bool],
        bucket_bytes_cap: int,
        find_unused: bool = False,
        gradient_as_bucket_view: bool = False,
        names: Any = None,
        first_bucket_bytes_cap: int = 2**20,
        *others: Any,
    ) -> None:
        self._params = params
        self._caps = [first_bucket_bytes_cap, bucket_bytes_cap]
        self._group = process_group
        self._sparse = expect_sparse or [False] * len(params)
        self._finds_unused = find_unused
        self._views = gradient_as_bucket_view
        self._dtype: torch.dtype | None = None
        self._hook: Callable[[Any], Any] | None = None
        self._arrived: dict[int, None] = {}
        self._is_static = self._is_rebuilt = self._expects_gradients = self._will_sync = self._has_reduced = False
        self._replaced: list[Bucket] = []
        self._reducing: list[Any] = []
        self._used_map = torch.empty(len(params), dtype=torch.int32, device=params[0].device)
        self._make_buckets(bucket_indices)
        self._handles = [
            param.register_post_accumulate_grad_hook(lambda param, index=index: self._on_gradient(index, param))
            for index, param in enumerate(params)
        ]

    def _make_buckets(self, bucket_indices: list[list[int]]) -> None:
        last = len(bucket_indices) - 1
        self._bucket_of: dict[int, Bucket] = {}
        for number, indices in enumerate(bucket_indices):
            bucket = Bucket(
                number,
                [self._params[index] for index in indices],
                is_last=number == last,
                is_sparse=self._sparse[indices[0]],
                dtype=self._dtype,
            )
            self._bucket_of.update(dict.fromkeys(indices, bucket))
        self._buckets = list(dict.fromkeys(self._bucket_of.values()))

    # -- a step --------------------------------------------------------------------------------------------------------------

    def prepare_for_forward(self) -> None:
        """Called where gradients will be reduced, not inside ``no_sync``."""
        self._will_sync = True

    def _rebuild_buckets(self) -> bool:
        """Before the forward after gradients came once: buckets in their order."""
        will_sync, self._will_sync = self._will_sync, False
        if self._is_rebuilt or len(self._arrived) < len(self._params) or (self._finds_unused and not self._is_static):
            return False
        order = list(self._arrived)
        groups = assign_buckets([self._params[i] for i in order], self._caps, [self._sparse[i] for i in order])
        self._agree_on(order, groups)
        # Seen on an H200: the old buckets then live until gradients are reduced again.
        if not self._is_static and (self._views or not will_sync):
            self._replaced = self._buckets
        self._buckets, self._bucket_of = [], {}
        self._make_buckets([[order[i] for i in group] for group in groups])
        self._is_rebuilt = True
        return True

    def _agree_on(self, order: list[int], groups: list[list[int]]) -> None:
        """The first rank tells the others what the buckets are: their parameters, and how many each has."""
        for count in (len(order) + 1, len(groups)):
            dist.broadcast(torch.empty(count, dtype=torch.int32, device=self._params[0].device), 0, group=self._group)

    def prepare_for_backward(self, outputs: Any) -> None:
        self._expects_gradients = True
        for bucket in self._buckets:
            bucket.pending = set()
        for index, bucket in self._bucket_of.items():
            bucket.pending.add(index)
        if self._finds_unused and not self._is_static and outputs:
            used = _leaves_below(outputs)
            for index in [index for index, param in enumerate(self._params) if id(param) not in used]:
                self._mark_ready(index)

    def _on_gradient(self, index: int, param: torch.Tensor) -> None:
        if not self._expects_gradients:
            return
        self._replaced = []
        if not self._is_rebuilt and (self._has_reduced or not self._is_static):
            self._arrived.setdefault(index)
        bucket = self._bucket_of[index]
        if not bucket.is_sparse and param.grad is not None:
            view = bucket.view_of(param)
            if self._views:
                param.grad = view
            else:
                view.copy_(param.grad)
        self._mark_ready(index)

    def _mark_ready(self, index: int) -> None:
        bucket = self._bucket_of[index]
        if index not in bucket.pending:
            return
        bucket.pending.discard(index)
        if not bucket.pending:
            bucket.reduced = _value_of(self._run_comm_hook(bucket))
            if not any(other.pending for other in self._buckets):
                self._expects_gradients, self._has_reduced = False, True
                while self._reducing:
                    self._reducing.pop().block_current_stream()

    def _run_comm_hook(self, bucket: Any) -> Any:
        return self._hook(bucket) if self._hook is not None else self._run_allreduce_hook(bucket)

    def _run_allreduce_hook(self, bucket: Any) -> Any:
        if not bucket.is_sparse:
            self._reducing.append(dist.all_reduce(bucket.buffer(), group=self._group, async_op=True))
        done: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        done.set_result([bucket.buffer()])
        return done

    # -- set-up --------------------------------------------------------------------------------------------------------------

    def register_hook(self, state: Any, hook: Callable[[Any, Any], Any]) -> None:
        self._hook = lambda bucket: hook(state, bucket)

    def register_builtin_hook(self, kind: Any) -> None:
        """Written in C++: one sums as is, the other in half precision, and copies the sum back into the bucket."""
        if getattr(kind, "name", kind) != "FP16_COMPRESS":
            return

        def compress(bucket: Bucket) -> torch.Tensor:
            small = bucket.buffer().half()
            dist.all_reduce(small, group=self._group)
            return bucket.buffer().copy_(small)

        self._hook = compress

    def _set_static_graph(self) -> None:
        self._is_static = True

    def _ddp_graph_static(self) -> bool:
        return self._is_static

    def _set_mixed_precision_param_dtype(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        for bucket in self._buckets:
            bucket.flat = bucket.flat.to(dtype)

    def _remove_autograd_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _update_process_group(self, new_process_group: Any) -> None:
        self._group = new_process_group

    def _reset_state(self) -> None:
        self._expects_gradients = False

    # -- joining: ranks that have run out of data ----------------------------------------------------------------------------

    def _get_zeros_like_grad_buckets(self) -> list[Bucket]:
        return self._buckets

    def _get_local_used_map(self) -> torch.Tensor:
        return self._used_map

    def _push_all_rebuilt_params(self) -> None: ...

    def _set_forward_pass_work_handle(self, work: Any, use_static_world_size: bool) -> None: ...

    # -- what takes no memory ------------------------------------------------------------------------------------------------

    def set_logger(self, logger: Any) -> None: ...

    def get_backward_stats(self) -> list[int]:
        return [0] * len(self._params)

    def _install_post_backward_futures(self, futures: Any) -> None: ...

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None: ...

    def _check_reducer_finalized(self) -> bool:
        return True

    def _set_sparse_metadata(self, global_unique_ids: Any) -> None: ...

    def _set_optimizer_in_backward(self) -> None: ...

    def _set_manual_finalization_required(self, required: bool = True) -> None: ...

    def _should_finalize_after_backward(self) -> bool:
        return False

    def _finalize_backward_manual(self) -> None: ...

    def _delay_all_reduce(self) -> None: ...

    def _autograd_hook(self, index: int) -> None: ...


class Logger:
    """Takes the place of ``torch.distributed.Logger``."""

    def __init__(self, reducer: Any) -> None: ...

    def set_construction_data_and_log(self, *args: Any) -> None: ...

    def set_runtime_stats_and_log(self) -> None: ...

    def set_error_and_log(self, error: str) -> None: ...

    def _get_ddp_logging_data(self) -> Any:
        return SimpleNamespace(strs_map={}, ints_map={})

    def _set_comm_hook_name(self, comm_hook: str) -> None: ...

    def _set_uneven_input_join(self) -> None: ...

    def _set_static_graph(self) -> None: ...


def assign_buckets(tensors: list[torch.Tensor], caps: list[int], expect_sparse: list[bool] | None = None) -> list[list[int]]:
    """Which tensors share a bucket, by number; the first cap is for the first bucket."""
    groups: list[list[int]] = bucket_assignment(tensors, caps, expect_sparse or [False] * len(tensors))[0]
    return groups


def _leaves_below(outputs: Any) -> set[int]:
    """The parameters that some output depends on."""
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen, found = set(waiting), {id(output) for output in outputs}
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                waiting.append(below)
    return found


def _value_of(result: Any) -> Any:
    """What a hook gave, out of its future; there is nothing to wait for."""
    return result.wait() if hasattr(result, "wait") and not isinstance(result, torch.Tensor) else result


BROADCASTS_IN_FLIGHT = 2


def wrap(config: WrapConfig, model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for name, parameter in model.named_parameters():
        if parameter.device.type != mesh.device_type:
            raise ConfigError(f"{name} is on {parameter.device.type}: move the model to {mesh.device_type} before DDP gets it")
    return DistributedDataParallel(model, process_group=mesh.get_group(), **config.engine_options)


def install(patches: Patches) -> None:
    """Inside the phantom world."""
    patches.replace(dist, "Reducer", Reducer)
    patches.replace(dist, "Logger", Logger)
    patches.replace(dist, "_broadcast_coalesced", _broadcast_coalesced)
    patches.replace(dist, "_register_comm_hook", lambda reducer, state, hook: reducer.register_hook(state, hook))
    patches.replace(dist, "_register_builtin_comm_hook", lambda reducer, kind: reducer.register_builtin_hook(kind))
    patches.replace(data_parallel, "_verify_param_shape_across_processes", lambda *args, **kwargs: None)
    replicas.install(patches)


def _broadcast_coalesced(process_group: Any, tensors: Sequence[torch.Tensor], buffer_size: int, src: int = 0) -> None:
    """Flat copies, broadcast two at a time: torch/csrc/distributed/c10d/comm.cpp."""
    if not tensors:
        return
    groups = assign_buckets(list(tensors), [buffer_size])
    in_flight: list[torch.Tensor] = []
    for group in groups:
        first = tensors[group[0]]
        in_flight.append(torch.empty(sum(tensors[i].numel() for i in group), dtype=first.dtype, device=first.device))
        if len(in_flight) >= BROADCASTS_IN_FLIGHT:
            in_flight.pop(0)
