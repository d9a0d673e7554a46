"""The ten faults of PyTorch's trackers: each is shown on PyTorch's class, next to what ours says of the same work.

Ours is asserted first. Where an assertion on PyTorch's side fails with "fixed", a new torch no longer has that fault: take it off
the list, what is asserted of ours stays true.
"""

import itertools
import sys
import warnings

import pytest
import torch
from helpers.tracker_readings import (
    FSDPMemTracker,
    MemTracker,
    TorchFSDPMemTracker,
    TorchMemTracker,
    current,
    peak,
    states,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from memfit.torch_compat.versions import installed_torch

F32 = 4
FIXED = f"fixed in torch {torch.__version__}"


def error_of(work):
    """What some work under PyTorch's tracker raises, in words; nothing if it goes well. What it warns of on the way is ignored."""
    try:
        with warnings.catch_warnings(action="ignore"):
            work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# -- 1 -----------------------------------------------------------------------------------------------------------------------


def peak_inside_a_fake_mode(tracker):
    with tracker, FakeTensorMode():
        model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8)
        model(x).sum().backward()
    return peak(tracker)


def test_1_a_fake_mode_entered_inside_the_tracker():
    loss_and_its_gradient = 2 * F32
    ours = peak_inside_a_fake_mode(MemTracker())
    assert ours == {"Parameter": 256, "Gradient": 256, "Activation": loss_and_its_gradient, "Other": 128, "Total": 648}
    if installed_torch() >= (2, 13):  # earlier ones do not have the fault
        assert peak_inside_a_fake_mode(TorchMemTracker()) == {}, FIXED


# -- 2 -----------------------------------------------------------------------------------------------------------------------


class Collectives(TorchDispatchMode):
    """Counts all-gathers, those of tensor subclasses too."""

    num_all_gathers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        self.num_all_gathers += "allgather" in str(func)
        return func(*args, **(kwargs or {}))


class Grouped(nn.Module):
    """``norm`` and ``out`` are one FSDP unit."""

    def __init__(self, mesh, dim=16):
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(dim, dim, bias=False), nn.LayerNorm(dim), nn.Linear(dim, dim, bias=False)
        fully_shard(self.inp, mesh=mesh)
        fully_shard([self.norm, self.out], mesh=mesh)
        fully_shard(self, mesh=mesh)

    def forward(self, x):
        return self.out(self.norm(self.inp(x)))


def num_all_gathers(model):
    with Collectives() as collectives:
        model(torch.ones(4, 16)).sum().backward()
    return collectives.num_all_gathers


def test_2_grouped_fsdp_units(world):
    assert num_all_gathers(Grouped(world)) == 4

    model = Grouped(world)
    with FSDPMemTracker(model) as tracker:
        assert num_all_gathers(model) == 4
        shards = (2 * 16 * 16 + 2 * 16) // 4 * F32
        assert current(tracker) == {"Sharded Param": shards, "Sharded Grad": shards, "Total": 2 * shards}
    assert num_all_gathers(model) == 4  # and nothing is left behind
    counts = {(name, state): len(taken) for name, by_state in states(tracker).items() for state, taken in by_state.items()}
    # FSDP2 of torch 2.11 comes to the end of a grouped unit's backward twice.
    twice = {key for key in counts if "Post-Backward" in key[1] and not key[0].endswith("inp") and installed_torch() == (2, 11)}
    assert len(counts) == 3 * 10
    assert counts == {key: 2 if key in twice else 1 for key in counts}

    model = Grouped(world)
    with TorchFSDPMemTracker(model) as tracker:
        assert num_all_gathers(model) == 6, FIXED
    assert "does not support memory tracking for multiple" in error_of(lambda: num_all_gathers(model)), FIXED


# -- 3 -----------------------------------------------------------------------------------------------------------------------


class Quantized(torch.Tensor):
    """Codes and their scale, each with a storage of its own, as FP8, NF4 and 8-bit optimizer states have."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Quantized(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func is torch.ops.aten.neg.default
        return cls(-args[0].codes, args[0].scale)


def test_3_subclasses_with_two_storages():
    every = []

    def bytes_of_negatives(tracker):
        tensor = Quantized(torch.zeros(1000, dtype=torch.int8), torch.ones(1))
        every.append(tensor)
        tracker.track_external(tensor)
        with tracker:
            kept = [-tensor for _ in range(64)]
            assert len(kept) == 64
            return current(tracker)["Total"]

    truth = 65 * 1000 + F32  # one scale for them all
    assert bytes_of_negatives(MemTracker()) == truth
    # PyTorch stops at the first storage it knows, and which comes first is a matter of addresses: mostly it misses about half of
    # 64. Scales have addresses of their own, because all of them are kept.
    assert min(bytes_of_negatives(TorchMemTracker()) for _ in range(20)) < truth, FIXED


# -- 4 -----------------------------------------------------------------------------------------------------------------------


def calls_per_module(tracker, num_modules):
    """How many functions a step calls, of Python and of C: a cost that no other load on the machine changes."""
    model, x, num_calls = nn.Sequential(*(nn.Linear(4, 4) for _ in range(num_modules))), torch.randn(2, 4), 0

    def count(frame, event, argument):
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    with tracker:
        sys.setprofile(count)
        try:
            model(x).sum().backward()
        finally:
            sys.setprofile(None)
    return num_calls / num_modules


def test_4_the_cost_of_a_step_is_linear_in_the_modules():
    assert calls_per_module(MemTracker(), 160) <= 1.05 * calls_per_module(MemTracker(), 20)
    assert calls_per_module(TorchMemTracker(), 160) > 2 * calls_per_module(TorchMemTracker(), 20), FIXED


# -- 5 -----------------------------------------------------------------------------------------------------------------------


def linear_step():
    model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8)
    return model, lambda: model(x).sum().backward()


def test_5_the_peak_is_reset():
    def peaks(tracker):
        model, step = linear_step()
        tracker.track_external(model)
        with tracker:
            torch.zeros(1000)
            step()
            before = peak(tracker)["Total"]
            tracker.reset_mod_stats()
            model.zero_grad()
            step()
        return before, peak(tracker)["Total"]

    parameter, gradient, x, loss_and_its_gradient = 256, 256, 128, 2 * F32
    assert peaks(MemTracker()) == (parameter + 4000, parameter + gradient + x + loss_and_its_gradient)
    before, after = peaks(TorchMemTracker())
    assert before == after == parameter + 4000, FIXED


def test_5_a_second_iteration():
    def two_iterations(tracker):
        model, step = linear_step()
        tracker.track_external(model)
        with tracker:
            for _ in range(2):
                step()
                model.zero_grad()
        return states(tracker)["Linear"]

    ours = two_iterations(MemTracker())
    assert {state: len(taken) for state, taken in ours.items()} == dict.fromkeys(ours, 2)
    assert [snapshot["cpu"]["Gradient"] for snapshot in ours["Post-Backward"]] == [256, 256]
    assert "multiple iterative calls" in error_of(lambda: two_iterations(TorchMemTracker())), FIXED


def test_5_gradient_accumulation():
    def accumulate(tracker):
        model, step = linear_step()
        tracker.track_external(model)
        with tracker:
            step()
            step()
        return states(tracker)["Linear"]["Peak-Backward"]

    first, second = accumulate(MemTracker())
    assert (first["cpu"]["Gradient"], first["cpu"]["Temp"]) == (256, 0)
    assert (second["cpu"]["Gradient"], second["cpu"]["Temp"]) == (256, 256)  # what is added to the gradient
    assert "multiple iterative calls" in error_of(lambda: accumulate(TorchMemTracker())), FIXED


# -- 6 -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreach", [False, True])
def test_6_temporaries_of_the_optimizer_are_not_its_state(foreach):
    def peak_of_step(tracker):
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
        optimizer, x = torch.optim.Adam(model.parameters(), foreach=foreach), torch.randn(4, 64)
        tracker.track_external(model, optimizer, x)
        with tracker:
            model(x).sum().backward()
            optimizer.step()
        return peak(tracker), current(tracker)["Optstate"]

    weights = 2 * 64 * 64 * F32
    state = 2 * weights + 2 * F32  # two moments a weight, one step count a tensor
    ours, held = peak_of_step(MemTracker())
    assert ours["Optstate"] == held == state
    assert ours["Temp"] == ours["Total"] - 2 * weights - state - 4 * 64 * F32 > 0
    theirs, held = peak_of_step(TorchMemTracker())
    assert held == state
    assert theirs["Total"] == ours["Total"]
    assert theirs["Optstate"] == state + ours["Temp"], FIXED


# -- 7 -----------------------------------------------------------------------------------------------------------------------


def fsdp1_model():
    """FSDP1 as it is on a GPU, told that its device is the CPU."""
    cpu = torch.device("cpu")
    layers = (FullyShardedDataParallel(nn.Linear(16, 16, bias=False), device_id=cpu, use_orig_params=True) for _ in range(2))
    model = FullyShardedDataParallel(nn.Sequential(*layers), device_id=cpu, use_orig_params=True)
    return model, torch.optim.SGD(model.parameters(), momentum=0.9), torch.randn(4, 16)


def fsdp1_step(make_tracker, num_iterations=1):
    model, optimizer, x = fsdp1_model()
    tracker = make_tracker(model, optimizer, x)
    with tracker:
        for _ in range(num_iterations):
            model(x).sum().backward()
            optimizer.step()
        return current(tracker), states(tracker)


def tracking_externally(kind):
    def make(*subjects):
        tracker = kind()
        tracker.track_external(*subjects)
        return tracker

    return make


def test_7_fsdp1(world):
    shards, x = 2 * 16 * 16 // 4 * F32, 4 * 16 * F32
    held, _ = fsdp1_step(tracking_externally(MemTracker))
    assert held == {"Parameter": shards, "Gradient": shards, "Optstate": shards, "Other": x, "Total": 3 * shards + x}
    error = error_of(lambda: fsdp1_step(tracking_externally(TorchMemTracker)))
    assert "post accumulate grad hooks cannot be registered on non-leaf tensors" in error, FIXED


def test_7_the_tracker_for_fsdp_takes_fsdp1_too(world):
    shards, x, whole = 2 * 16 * 16 // 4 * F32, 4 * 16 * F32, 16 * 16 * F32
    held, units = fsdp1_step(lambda model, optimizer, x: FSDPMemTracker(model, optimizer), num_iterations=2)
    assert held == {"Sharded Param": shards, "Sharded Grad": shards, "OptState": shards, "Inputs": x, "Total": 3 * shards + x}
    assert set(units) == {"FullyShardedDataParallel.0", "FullyShardedDataParallel.1"}
    for unit in units.values():
        gathered = [after["cpu"]["Unsharded Param"] - before["cpu"]["Unsharded Param"]
                    for before, after in zip(unit["Before Pre-Forward"], unit["After Pre-Forward"], strict=True)]  # fmt: skip
        assert gathered == [whole, whole]
        assert len(unit["Peak Backward"]) == 2
    assert "only supports FSDP modules" in error_of(lambda: TorchFSDPMemTracker(fsdp1_model()[0])), FIXED


# -- 8 -----------------------------------------------------------------------------------------------------------------------


def clip_and_log(tracker):
    """On fake tensors: clips, as careful people do it, and reads the norm."""
    with FakeTensorMode():
        model, x = nn.Linear(8, 8, bias=False), torch.randn(4, 8)
        tracker.track_external(model, x)
        with tracker:
            model(x).sum().backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
            logged = norm.item()
            return current(tracker), logged


def test_8_clipping_under_fake_tensors():
    """Fake tensors have no values, so reading one raises in fake mode itself; our trackers answer for it."""
    norm = F32
    held, logged = clip_and_log(MemTracker())
    assert held == {"Parameter": 256, "Gradient": 256, "Other": 128 + norm, "Total": 640 + norm}
    assert logged == 0.0
    assert "DataDependentOutputException" in error_of(lambda: clip_and_log(TorchMemTracker())), FIXED


def test_8_values_are_assumed_while_a_tracker_is_active_and_only_then():
    with FakeTensorMode():
        numbers = [torch.ones(1, dtype=dtype) * 2 for dtype in (torch.bool, torch.int64, torch.float32, torch.complex64)]
        numbers[0] = numbers[0] > 1
        with MemTracker(), MemTracker():
            assert [number.item() for number in numbers] == [False, 1, 0.0, 0j]
        for number in numbers:
            assert "DataDependentOutputException" in error_of(number.item)


# -- 9 -----------------------------------------------------------------------------------------------------------------------


def test_9_gradients_that_are_views_of_ddps_buckets(lone_rank):
    def first_step(tracker):
        model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
        model, x = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), torch.randn(64, 16)
        tracker.track_external(model, x)
        with tracker:
            model(x).sum().backward()
            return peak(tracker), current(tracker)

    weight, rows = 16 * 16 * F32, 64 * 16 * F32
    weights = bucket = 2 * weight
    # In the backward of the second layer: its weight's gradient, not yet in the bucket, and its input with its gradient.
    truth = weights + bucket + rows + (weight + rows + rows) + 2 * F32
    ours, after = first_step(MemTracker())
    assert ours["Total"] == truth
    assert after == {"Parameter": weights, "Gradient": bucket, "Other": rows, "Total": weights + bucket + rows}
    theirs, after = first_step(TorchMemTracker())
    assert theirs["Total"] == truth - bucket, FIXED  # met for the first time when it is reduced
    assert "Gradient" not in after, FIXED


# -- 10 ----------------------------------------------------------------------------------------------------------------------

fresh_width = itertools.count(36, 4)
"""DTensor propagates each shape once a process: every run here has its own."""


def test_10_whole_tensors_of_which_only_shards_exist(world):
    """DTensor tries operators on fake tensors of global shape, to learn what comes out. Under a fake mode, PyTorch counts those."""

    def bytes_of_matmul(tracker):
        dim = next(fresh_width)
        with FakeTensorMode():
            left = DTensor.from_local(torch.randn(4, dim), world, [Shard(0)])
            right = DTensor.from_local(torch.randn(dim, dim), world, [Replicate()])
            tracker.track_external(left, right)
            with tracker:
                left @ right
        truth = (4 * dim + dim * dim + 4 * dim) * F32
        return peak(tracker)["Total"] - truth

    assert bytes_of_matmul(MemTracker()) == 0
    assert bytes_of_matmul(TorchMemTracker()) > 0, FIXED


def test_10_cpu_offload(world):
    def bytes_too_many(kind):
        dim = next(fresh_width)
        with FakeTensorMode():
            model, options = nn.Sequential(*(nn.Linear(dim, dim, bias=False) for _ in range(2))), {"mesh": world}
            for module in (*model, model):
                fully_shard(module, **options, offload_policy=CPUOffloadPolicy(pin_memory=False))
            optimizer, x = torch.optim.Adam(model.parameters(), foreach=False), torch.randn(4, dim)
            tracker = kind(model, optimizer)
            tracker.track_inputs((x,))
            with tracker:
                model(x).sum().backward()
                in_backward = peak(tracker)["Total"]
                optimizer.step()
        whole, rows = dim * dim * F32, 4 * dim * F32
        if installed_torch() == (2, 12):
            # The first layer's gradient is reduced: the shards of both, the gradient itself, and the buffers of both reductions.
            assert in_backward == 2 * whole // 4 + (2 * whole // 4 + whole + 2 * whole) + rows + 2 * F32
        else:
            # The second layer's gradient is reduced: its shard, the gradient itself, the buffer of the reduction, and the first
            # layer, gathered ahead of its time.
            assert in_backward == 2 * whole // 4 + (whole // 4 + whole + whole + whole) + 2 * rows + 2 * F32
        return peak(tracker)["Total"] - in_backward

    assert bytes_too_many(FSDPMemTracker) == 0  # a step on shards is small
    assert bytes_too_many(TorchFSDPMemTracker) > 0, FIXED
