"""What CUDA graphs and memory pools free cannot be used by others, nor the other way round."""

from __future__ import annotations

import torch

import memfit
from memfit.units import MIB

SIZE = 100 * MIB


def made() -> torch.Tensor:
    return torch.empty(SIZE, dtype=torch.uint8, device="cuda")


def reserved_by(step) -> int:
    return int(memfit.predict(lambda: step, gpu="T4", steps=1).peak_reserved)


def test_what_is_freed_in_common_memory_is_used_again():
    def step():
        del [made()][0]
        made()

    assert reserved_by(step) == SIZE


def test_a_graph_keeps_what_it_frees():
    def step():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made()
            made()
        made()
        graph.replay()

    assert reserved_by(step) == 2 * SIZE


def test_graphs_with_one_pool_share_it():
    def step():
        first, second, third = (torch.cuda.CUDAGraph() for _ in range(3))
        handle = torch.cuda.graph_pool_handle()
        for graph, pool in ((first, handle), (second, handle), (third, first.pool)):
            with torch.cuda.graph(graph, pool=pool() if callable(pool) else pool):
                made()

    assert reserved_by(step) == SIZE


def test_a_memory_pool_is_apart():
    def step():
        pool = torch.cuda.MemPool()
        for _ in range(2):
            with torch.cuda.use_mem_pool(pool):
                made()
        made()

    assert reserved_by(step) == 2 * SIZE


def test_backward_in_another_thread_takes_nothing_of_a_memory_pool():
    def step():
        weight = torch.ones(SIZE // 4, device="cuda", requires_grad=True)
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            loss = weight.sum()
            loss.backward()  # its gradient is expanded and copied in common memory
        del weight.grad
        made()

    assert reserved_by(step) == 2 * SIZE + 2 * MIB
