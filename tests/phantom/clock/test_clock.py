"""Streams, events and collectives on the clock of a phantom GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import memfit
from memfit.phantom.clock import operator_clock
from memfit.predict.result import Prediction


def predicted(step: Callable[[], Any], **options: Any) -> Prediction:
    return memfit.predict(lambda: step, steps=1, **options)


def busy() -> None:
    """A product of about a millisecond."""
    a = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
    torch.mm(a, a)


def seconds_of(step: Callable[[], Any], **options: Any) -> float:
    found = predicted(step, **options).step_seconds
    assert found is not None
    return found


def test_events_tell_the_time_between_them() -> None:
    found: list[float] = []

    def step() -> None:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        busy()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))

    seconds = seconds_of(step)
    assert found[0] == pytest.approx(1000 * seconds, rel=0.05)
    assert 1 < found[0] < 3


def test_what_is_not_done_says_so_and_a_loop_that_asks_ends() -> None:
    found: list[tuple[bool, bool]] = []

    def step() -> None:
        end = torch.cuda.Event()
        busy()
        end.record()
        found.append((end.query(), torch.cuda.current_stream().query()))
        while not end.query():
            pass
        found.append((end.query(), torch.cuda.current_stream().query()))

    assert seconds_of(step) == pytest.approx(seconds_of(busy), rel=0.05)
    assert found == [(False, False), (True, True)]


def test_a_graph_takes_its_time_at_every_replay() -> None:
    def step() -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            busy()
        graph.replay()
        graph.replay()

    assert seconds_of(step) == pytest.approx(3 * seconds_of(busy), rel=0.1)


def test_streams_run_side_by_side_until_one_waits() -> None:
    def apart() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            busy()
        busy()

    def in_turn() -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            busy()
        torch.cuda.current_stream().wait_stream(side)
        busy()

    one = seconds_of(busy)
    assert seconds_of(apart) == pytest.approx(one, rel=0.1)
    assert seconds_of(in_turn) == pytest.approx(2 * one, rel=0.1)


def test_an_event_orders_streams_too() -> None:
    def step() -> None:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            busy()
            done = side.record_event()
        torch.cuda.current_stream().wait_event(done)
        busy()

    assert seconds_of(step) == pytest.approx(2 * seconds_of(busy), rel=0.1)


def test_a_loss_that_is_looked_at_makes_the_host_wait() -> None:
    """A thousand small kernels hide behind a large one, unless the host waits for that one first."""

    def step(looks: bool) -> None:
        busy()
        x = torch.ones(8, device="cuda")
        if looks:
            float(x.sum())
        for _ in range(100):
            x = x + 1

    hidden, shown = seconds_of(lambda: step(False)), seconds_of(lambda: step(True))
    assert shown > hidden + 300e-6


def build_sharded(num_layers: int = 3) -> Callable[[], Any]:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl")
    model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(num_layers))).to("cuda")
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    x = torch.randn(4096, 4096, device="cuda")

    def step() -> None:
        model(x).sum().backward()

    return step


@pytest.mark.filterwarnings("ignore")
def test_slow_links_are_seen_and_fast_ones_hide() -> None:
    found = {
        links: memfit.predict(build_sharded, world_size=16, steps=1, interconnect=links)
        for links in ("none", "8xH200-NVLink+400G", "8xH200-NVLink+10G")
    }
    parts = {links: prediction.time_breakdown for links, prediction in found.items()}
    free, fast, slow = (parts[links] for links in ("none", "8xH200-NVLink+400G", "8xH200-NVLink+10G"))
    assert free is not None
    assert fast is not None
    assert slow is not None
    assert free.communication == 0.0
    assert 0.0 < fast.exposed_communication < fast.communication
    assert slow.exposed_communication > 10 * fast.exposed_communication
    assert slow.total > fast.total >= free.total
    assert found["none"].peak_allocated == found["8xH200-NVLink+10G"].peak_allocated
    for part in (free, fast, slow):
        assert part.total == pytest.approx(part.compute + part.exposed_communication + part.idle)


def test_one_waits_for_the_collective_it_asked_for_and_no_other() -> None:
    def seconds(does_wait: bool) -> float:
        def build() -> Callable[[], Any]:
            dist.init_process_group("nccl")
            small, large = (torch.empty(size, device="cuda", dtype=torch.bfloat16) for size in (1024, 1024**3))

            def step() -> None:
                gathered = torch.ops._c10d_functional.all_gather_into_tensor(small, 8, dist.group.WORLD.group_name)
                reducing = dist.all_reduce(large, group=dist.new_group(list(range(8))), async_op=True)
                torch.ops._c10d_functional.wait_tensor(gathered).sum()
                if does_wait:
                    reducing.wait()
                busy()
                reducing.wait()

            return step

        found = memfit.predict(build, steps=1, gpu="H200", world_size=8).step_seconds
        assert found is not None
        return found

    assert seconds(does_wait=False) < 0.9 * seconds(does_wait=True)


def test_a_product_with_a_vector_has_a_price() -> None:
    assert seconds_of(lambda: torch.mv(torch.empty(4096, 4096, device="cuda"), torch.empty(4096, device="cuda"))) > 0


def test_what_cannot_be_priced_costs_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    peak = predicted(busy).peak_allocated

    def no_price(*args: Any) -> Any:
        raise IndexError("list index out of range")

    monkeypatch.setattr(operator_clock, "price", no_price)
    found = predicted(busy)
    assert found.peak_allocated == peak
    assert any("the time of aten.mm.default is not counted" in line and "IndexError" in line for line in found.assumptions)


@pytest.mark.parametrize(("non_blocking", "does_wait"), [(True, False), (False, True)])
def test_a_copy_to_pinned_memory_waits_unless_told_not_to(non_blocking: bool, does_wait: bool) -> None:
    """Which is what offloading of activations does with every tensor."""

    def step(copies: bool) -> None:
        busy()
        x = torch.ones(8, device="cuda")
        if copies:
            torch.empty(8, pin_memory=True).copy_(x, non_blocking=non_blocking)
        for _ in range(100):
            x = x + 1

    hidden, shown = seconds_of(lambda: step(False)), seconds_of(lambda: step(True))
    assert (shown > hidden + 300e-6) == does_wait
