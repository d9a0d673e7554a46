"""``fake_collectives``, as PyTorch's tools have it: what a dispatch mode has to know of collective operators.

One row per operator: which of its arguments is the process group, what is communicated, and where its result has the handle that
can be waited for. PyTorch's sets of operators follow from the rows. An operator that the installed torch does not have has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from memfit.record.tensors import tensors_in
from memfit.torch_compat.dispatch import OpOverload
from memfit.torch_compat.distributed import FakeWork, ProcessGroup, resolve_group

Size = Callable[[Any, Any], int]
"""Bytes that are communicated, from an operator's result and arguments."""


def _sum(value: Any) -> int:
    return sum(_storage(tensor) for tensor in tensors_in(value))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage().nbytes())


_SIZES: dict[str, Size] = {
    "tensors of 0": lambda result, args: _sum(args[0]),
    "tensors of 1": lambda result, args: _sum(args[1]),
    "tensors of 3": lambda result, args: _sum(args[3]),
    "tensors of the result": lambda result, args: _sum(result),
    "storage of 0": lambda result, args: _storage(args[0]),
    "storage of 1": lambda result, args: _storage(args[1]),
    "storage of the last": lambda result, args: _storage(args[-1]),
    "storage of the result": lambda result, args: _storage(result),
    "storages of 0 and the result": lambda result, args: _storage(args[0]) + _storage(result),
    "larger of tensors": lambda result, args: max(_sum(args[0]), _sum(args[1])),
    "larger of storages": lambda result, args: max(_storage(args[0]), _storage(args[1])),
}


@dataclass(frozen=True)
class _Row:
    operator: str
    """``c10d.broadcast_``."""
    group: int = 0
    """The number of the argument that is, or names, the process group; 0 where PyTorch's tools do not ask for it."""
    size: str = ""
    """A name in ``_SIZES``; empty where nothing is communicated, or PyTorch's tools cannot tell."""
    work: str = ""
    """Where the handle is: the ``result`` itself, or the ``second`` of several; empty where there is none."""

    @property
    def is_functional(self) -> bool:
        return not self.operator.startswith("c10d.")


_F, _A = "_c10d_functional", "_c10d_functional_autograd"
_ROWS = (
    _Row("c10d.broadcast_", 1, "tensors of 0", "second"),
    _Row("c10d.allreduce_", 1, "tensors of 0", "second"),
    _Row("c10d.reduce_", 1, "tensors of 0", "result"),
    _Row("c10d.send", 1, "tensors of 0", "result"),
    _Row("c10d.recv_", 1, "tensors of 0", "result"),
    _Row("c10d.recv_any_source_", 1, "tensors of 0", "result"),
    _Row("c10d.allgather_", 2, "tensors of 0", "second"),
    _Row("c10d.reduce_scatter_", 2, "tensors of 1", "second"),
    _Row("c10d._reduce_scatter_base_", 2, "storage of 1", "second"),
    _Row("c10d._allgather_base_", 2, "storage of 0", "second"),
    _Row("c10d.gather_", 2, "tensors of 0", "result"),
    _Row("c10d.scatter_", 2, "tensors of 1", "second"),
    _Row("c10d.alltoall_", 2, "larger of tensors", "second"),
    _Row("c10d.alltoall_base_", 2, "larger of storages", "result"),
    _Row("c10d.barrier", 1, "", "result"),
    _Row("c10d.monitored_barrier_"),
    _Row(f"{_F}.broadcast", 2, "storage of 0"),
    _Row(f"{_F}.broadcast_", 2, "storage of 0"),
    _Row(f"{_F}.all_reduce", 2, "storage of 0"),
    _Row(f"{_F}.all_reduce_", 2, "storage of 0"),
    _Row(f"{_F}.all_reduce_coalesced", 2, "tensors of 0"),
    _Row(f"{_F}.all_reduce_coalesced_", 2, "tensors of 0"),
    _Row(f"{_F}.all_gather_into_tensor", 2, "storage of the result"),
    _Row(f"{_A}.all_gather_into_tensor", 2, "storage of the result"),
    _Row(f"{_F}.all_gather_into_tensor_out", 2, "storage of the last"),
    _Row(f"{_F}.all_gather_into_tensor_coalesced", 2, "tensors of the result"),
    _Row(f"{_F}.reduce_scatter_tensor", 3, "storage of 0"),
    _Row(f"{_A}.reduce_scatter_tensor", 3, "storage of 0"),
    _Row(f"{_F}.reduce_scatter_tensor_out"),
    _Row(f"{_F}.reduce_scatter_tensor_coalesced", 3, "tensors of the result"),
    _Row(f"{_F}.all_to_all_single", 3, "storages of 0 and the result"),
    _Row(f"{_A}.all_to_all_single", 3, "storages of 0 and the result"),
    _Row("_dtensor.shard_dim_alltoall", 3, "storages of 0 and the result"),
    _Row(f"{_F}.isend", 3, "", "second"),
    _Row(f"{_F}.irecv", 3, "", "second"),
    _Row(f"{_F}.batch_p2p_ops", 4, "tensors of 3"),
    _Row(f"{_F}.wait_tensor"),
    _Row(f"{_F}.wait_tensors"),
)
_SYNC = ("c10d.barrier", "c10d.monitored_barrier_", f"{_F}.wait_tensor", f"{_F}.wait_tensors")


def _present() -> Iterator[tuple[OpOverload, _Row]]:
    for row in _ROWS:
        library, name = row.operator.split(".")
        packet = getattr(getattr(torch.ops, library), name, None)
        if packet is not None:
            yield packet.default, row


_BY_OPERATOR = dict(_present())


def _operators(matches: Callable[[_Row], bool]) -> set[OpOverload]:
    return {operator for operator, row in _BY_OPERATOR.items() if matches(row)}


def _of_size(size: str) -> set[OpOverload]:
    return _operators(lambda row: row.size == size)


non_functional_collectives = _operators(lambda row: not row.is_functional)
functional_collectives = _operators(lambda row: row.is_functional)
sync_ops = _operators(lambda row: row.operator in _SYNC)
collective_ops = functional_collectives | non_functional_collectives


class CollectiveOp:
    """Questions to a collective operator. The sets have PyTorch's names: which argument is the group, what is communicated, ..."""

    PG_ARG_1 = _operators(lambda row: row.group == 1)
    PG_ARG_2 = _operators(lambda row: row.group == 2 and not row.is_functional)
    PG_ARG_3 = _operators(lambda row: row.group == 2 and row.is_functional)
    PG_ARG_4 = _operators(lambda row: row.group == 3)
    PG_ARG_5 = _operators(lambda row: row.group == 4)
    WK_ARG_1 = _operators(lambda row: row.work == "second")
    WK = _operators(lambda row: row.work == "result")
    COMM_TENSOR_ARG_0 = _of_size("tensors of 0")
    COMM_TENSOR_ARG_1 = _of_size("tensors of 1")
    COMM_TENSOR_ARG_RES = _of_size("storage of the result")
    COMM_TENSOR_SINGLE_UNTYPED_STORAGE = _of_size("storage of 0")
    COMM_TENSOR_ARG_0_AND_RES = _of_size("storages of 0 and the result")
    COMM_TENSOR_RES_SUM = _of_size("tensors of the result")

    @staticmethod
    def sum_tensors(arg: Any) -> int:
        """The bytes of the storages of all tensors in ``arg``."""
        return _sum(arg)

    @staticmethod
    def get_process_group(func: OpOverload, args: Any) -> Any:
        """The group that communicates; not for those that only wait."""
        row = _row(func)
        if not row.group:
            raise TypeError(f"{func} has no process group that could be asked for")
        given = args[row.group]
        return resolve_group(given) if row.is_functional else ProcessGroup.unbox(given)

    @staticmethod
    def get_comm_tensor_size(func: OpOverload, res: Any, args: Any, kwargs: Any) -> int:
        """The bytes that are communicated; not for those that only wait."""
        row = _row(func)
        if not row.size:
            raise TypeError(f"how much {func} communicates is not known")
        return _SIZES[row.size](res, args)

    @staticmethod
    def get_work(func: OpOverload, res: Any) -> Any:
        """The handle that can be waited for."""
        row = _row(func)
        if not row.work:
            raise TypeError(f"{func} gives no handle that could be waited for")
        return FakeWork.unbox(res if row.work == "result" else res[1])


def _row(func: OpOverload) -> _Row:
    if func not in _BY_OPERATOR:
        raise TypeError(f"{func} is no collective operator: known are {', '.join(sorted(map(str, collective_ops)))}")
    return _BY_OPERATOR[func]
