"""The parts that the second witness leans on, each where memfit knows it."""

import pytest
import torch
from torch import nn

from memfit.torch_compat import memory_history
from memfit.torch_compat.autograd import ENGINE_RUNS, next_sequence_nr
from memfit.torch_compat.distributed import bucket_sizes
from memfit.torch_compat.tensors import is_transforming, where_data_begin, where_storages_begin


def test_without_cuda_no_history_is_kept():
    assert not memory_history.keeps_history() or torch.cuda.is_available()
    assert not memory_history.is_kept_by_somebody()


def test_before_cuda_begins_nobody_keeps_a_history_and_torch_is_not_asked(monkeypatch):
    def crash():
        raise AssertionError("before CUDA begins, torch ends the process here")

    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", crash, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not memory_history.is_kept_by_somebody()
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: True, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert memory_history.is_kept_by_somebody()


def test_a_view_lies_in_the_memory_of_its_storage():
    whole = torch.zeros(8, 4)
    begin = whole.untyped_storage().data_ptr()
    assert where_storages_begin([whole, None, whole[3:], whole[2:, 1:].double()[:0]]) == [begin, 0, begin, 0]
    assert where_storages_begin([torch.eye(2).to_sparse()]) is None


def test_torch_records_and_clears_its_history_by_these_arguments():
    import inspect

    names = inspect.signature(torch.cuda.memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries", "clear_history"} <= set(names)


def test_something_can_wait_for_cuda():
    before = list(torch.cuda._queued_calls)
    try:
        memory_history.when_cuda_begins(lambda: None)
        assert len(torch.cuda._queued_calls) == len(before) + 1 or torch.cuda.is_initialized()
    finally:
        torch.cuda._queued_calls[:] = before


def test_every_backward_goes_through_one_function():
    calls = []
    originals = [getattr(owner, name) for owner, name in ENGINE_RUNS]

    def seen(*args, **kwargs):
        calls.append(1)
        return originals[0](*args, **kwargs)

    try:
        for owner, name in ENGINE_RUNS:
            setattr(owner, name, seen)
        leaf = torch.ones(2, requires_grad=True)
        leaf.sum().backward()
        torch.autograd.grad(leaf.sum(), leaf)
        torch.autograd.backward([leaf.sum()])
    finally:
        for (owner, name), original in zip(ENGINE_RUNS, originals, strict=True):
            setattr(owner, name, original)
    assert len(calls) == 3


def test_a_node_tells_before_it_runs_and_its_number_lies_between_those_around_it():
    first = next_sequence_nr()
    result = (torch.ones(2, requires_grad=True) * 2).sum()
    told = []
    handle = result.grad_fn.register_prehook(lambda gradients: told.append(result.grad_fn._sequence_nr()))
    result.backward()
    handle.remove()
    assert first <= told[0] < next_sequence_nr()


def test_transforms_are_noticed():
    seen = []
    torch.func.vmap(lambda x: seen.append(is_transforming()) or x)(torch.ones(2))
    assert (is_transforming(), seen) == (False, [True])


def test_where_data_begin_is_known_of_most_tensors():
    plain = torch.ones(4)
    assert where_data_begin([plain, None, plain[2:]]) == [plain.data_ptr(), 0, plain.data_ptr() + 8]
    assert where_data_begin([torch.ones(2).to_sparse()]) is None


def test_only_ddp_has_buckets():
    assert bucket_sizes(nn.Linear(2, 2)) == []


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ""),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:32"}, "max_split_size_mb:32"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:32", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64"),
        ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:32", "PYTORCH_CUDA_ALLOC_CONF": ""}, ""),
    ],
)
def test_the_environment_is_read_in_torchs_order(environment, found):
    assert memory_history.alloc_conf_of_environment(environment) == found
