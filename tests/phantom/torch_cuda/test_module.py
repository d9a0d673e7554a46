"""torch.cuda and its kin answer for the GPU that is not there: all of them, or they say why not."""

from __future__ import annotations

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.errors import NeedsGpuError
from memfit.phantom.compile.ignored_features import GRAPHS
from memfit.units import MIB

WITH_ARGUMENTS = {
    "caching_allocator_alloc": (64,),
    "caching_allocator_delete": (0,),
    "can_device_access_peer": (0, 0),
    "check_error": (0,),
    "make_graphed_callables": (nn.Identity(), ()),
    "manual_seed": (1,),
    "manual_seed_all": (1,),
    "set_device": (0,),
    "set_per_process_memory_fraction": (1.0,),
    "set_rng_state": (torch.zeros(16, dtype=torch.uint8),),
    "set_rng_state_all": ([torch.zeros(16, dtype=torch.uint8)],),
    "set_stream": (None,),
    "set_sync_debug_mode": (0,),
    "stream": (None,),
}
OTHERWISE_TESTED = ("device", "device_of", "use_mem_pool", "graph", "export_dot", "export_graph_data")
"""Contexts, and (since 2.15) what draws CUDA graphs, of which there are none."""
REFUSED = frozenset(("change_current_allocator", "current_blas_handle", "current_solver_handle", "get_stream_from_external"))


def functions() -> list[str]:
    return [name for name in torch.cuda.__all__ if name[0].islower() and callable(getattr(torch.cuda, name, None))]


@pytest.mark.filterwarnings("ignore")
def test_every_function_answers():
    asked = [name for name in functions() if name not in OTHERWISE_TESTED]
    failed = {}

    def build():
        torch.ones(1, device="cuda")
        for name in asked:
            try:
                getattr(torch.cuda, name)(*WITH_ARGUMENTS.get(name, ()))
            except NeedsGpuError:
                failed[name] = "refused"
            except Exception as error:
                failed[name] = repr(error)
        return lambda: None

    memfit.predict(build, steps=1)
    assert len(asked) > 60
    assert failed == dict.fromkeys(REFUSED.intersection(asked), "refused")


def test_properties():
    with phantom("A100-80GB"):
        properties = torch.cuda.get_device_properties("cuda:0")
        assert (properties.name, properties.major, properties.minor, properties.warp_size) == ("NVIDIA A100-80GB", 8, 0, 32)
        assert (properties.max_threads_per_multi_processor, properties.shared_memory_per_multiprocessor) == (2048, 164 * 1024)
        with pytest.raises(AttributeError, match="memfit does not know 'clock_rate'"):
            _ = properties.clock_rate


def test_devices():
    with phantom(world_size=4, rank=2):
        assert torch.cuda.current_device() == 2
        with torch.cuda.device(1):
            assert torch.empty(1, device="cuda").device.index == 1
            with torch.cuda.device_of(torch.empty(1, device="cuda:3")):
                assert torch.cuda.current_device() == 3
            with torch.cuda.device_of(torch.empty(1)):
                assert torch.cuda.current_device() == 1
        assert torch.cuda.current_device() == 2
        with pytest.raises(RuntimeError, match="cuda:4"):
            torch.cuda.set_device(4)


def test_memory_statistics_follow_the_run():
    seen = {}

    def build():
        seen["before"] = torch.cuda.memory_stats()
        held = torch.empty(MIB, dtype=torch.uint8, device="cuda")
        raw = torch.cuda.caching_allocator_alloc(4 * MIB)
        seen["raw"] = torch.cuda.memory_allocated()
        torch.cuda.caching_allocator_delete(raw)
        torch.cuda.reset_accumulated_memory_stats()
        torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
        seen["after"] = torch.cuda.memory_stats()
        seen["summary"] = torch.cuda.memory_summary(abbreviated=True)
        seen["nested"] = torch.cuda.memory_stats_as_nested_dict()
        seen["free"], seen["total"] = torch.cuda.mem_get_info()
        seen["accelerator"] = torch.accelerator.memory_allocated()
        return lambda: held.add_(1)

    memfit.predict(build, steps=1)
    assert seen["before"].keys() == seen["after"].keys()
    assert seen["before"]["allocated_bytes.all.peak"] == 0
    assert seen["raw"] == 5 * MIB
    assert seen["after"]["allocated_bytes.all.allocated"] == 2 * MIB
    assert seen["accelerator"] == seen["nested"]["allocated_bytes"]["all"]["current"] == MIB
    assert "Allocated memory" in seen["summary"]
    assert seen["free"] < seen["total"]


def test_a_rank_reads_its_own_gpu():
    seen = []

    def build():
        held = torch.empty(MIB, dtype=torch.uint8, device="cuda:3")
        seen.append(torch.cuda.memory_allocated())
        return lambda: held.add_(1)

    assert memfit.predict(build, world_size=8, rank=3, steps=1).peak_allocated == seen[0] == MIB


def test_settings_that_a_run_makes_count():
    def build():
        torch.cuda.set_per_process_memory_fraction(0.5)
        held = torch.empty(60 * 2**30, dtype=torch.uint8, device="cuda")
        return lambda: held.add_(1)

    limited = memfit.predict(build, gpu="H100-80GB", steps=1)
    assert limited.peak_allocated == 60 * 2**30  # it is predicted to the end
    assert not limited.fits
    assert limited.ledger.info.alloc_conf == "per_process_memory_fraction:0.5"
    assert memfit.predict(build, gpu="H200", steps=1).fits
    with phantom(), pytest.raises(ValueError, match="from 0 to 1"):
        torch.cuda.set_per_process_memory_fraction(1.5)


def test_tools_find_nothing_to_do():
    with phantom() as world:
        torch.cuda.memory._record_memory_history(max_entries=10)
        assert torch.cuda.memory._snapshot()["segments"] == []
        torch.cuda.nvtx.range_push("x")
        torch.cuda.nvtx.range_pop()
        with torch.cuda.nvtx.range("x"), torch.autograd.profiler.emit_nvtx():
            torch.cuda.profiler.start()
            torch.cuda.cudart().cudaProfilerStop()
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            assert torch.empty(1, device="cuda").is_cuda
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = torch.ones(2, device="cuda") + 1
        graph.replay()
        assert result.is_cuda
        start, end = torch.cuda.Event(enable_timing=True), torch.Event("cuda")
        start.record()
        assert start.elapsed_time(end) > 0
    assert {sentence.partition(" were")[0] for sentence in world.assumptions.sentences()} == {
        "torch.cuda.memory's history and snapshots",
        GRAPHS,
    }


def test_old_names_of_types():
    with phantom():
        x = torch.cuda.FloatTensor([1, 2])
        assert (x.device.type, x.type(), torch.cuda.LongTensor(3, 4).shape) == ("cuda", "torch.cuda.FloatTensor", (3, 4))
        assert isinstance(x, torch.cuda.FloatTensor)
        assert not isinstance(x.half(), torch.cuda.FloatTensor)
        assert not isinstance(torch.ones(1), torch.cuda.FloatTensor)
        assert torch.ones(2).type(torch.cuda.HalfTensor).dtype == torch.float16
        assert torch.ones(2).type("torch.cuda.FloatTensor").is_cuda
        assert torch.ones(2).type() == "torch.FloatTensor"


def test_generators():
    with phantom():
        generator = torch.Generator("cuda").manual_seed(3)
        assert isinstance(generator, torch.Generator)
        assert isinstance(torch.default_generator, torch.Generator)
        assert torch.randperm(4, device="cuda", generator=generator).is_cuda
        with torch.random.fork_rng(devices=[0]):
            torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        first = torch.randn(3, generator=torch.Generator().manual_seed(1))
        assert torch.equal(first, torch.randn(3, generator=torch.Generator().manual_seed(1)))


def test_pinned_memory():
    with phantom():
        pinned = torch.empty(4, pin_memory=True)
        assert pinned.is_pinned()
        assert pinned[:2].is_pinned()
        assert pinned.pin_memory() is pinned
        assert not torch.empty(4).is_pinned()
        assert torch.empty_like(pinned, pin_memory=True).untyped_storage().is_pinned()
        loader = torch.utils.data.DataLoader(torch.arange(8.0), batch_size=4, num_workers=1, pin_memory=True)
        batches = list(loader)
        assert [batch.is_pinned() for batch in batches] == [True, True]
        assert torch.cat(batches).tolist() == list(range(8))
