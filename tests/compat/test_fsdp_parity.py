"""``FSDPMemTracker`` next to PyTorch's on the same sharded model: figures, states, printed lines.

Two figures differ, each for a reason that is asserted here: PyTorch's tracker keeps a unit's last gradient alive while gradients
are reduced, and counts the next unit's unsharding to a unit's backward.
"""

import re
from contextlib import nullcontext

import pytest
import torch
from helpers.tracker_readings import FSDPMemTracker, TorchFSDPMemTracker, current, in_words, states
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from memfit.compat.fsdp2_mem_tracker import _backward_peaks
from memfit.errors import ConfigError
from memfit.testing import ledger

KINDS = [TorchFSDPMemTracker, FSDPMemTracker]
ALL_ITS_LIFE = ("Sharded Param", "Buffer", "Inputs", "Total")
"""What PyTorch never calls anything else on the way."""

DIM = 16
UNITS = ["FSDPNet", "FSDPNet.layers.0", "FSDPNet.layers.1"]
FORWARD = ["Peak Forward", "Before Pre-Forward", "After Pre-Forward", "Before Post-Forward", "After Post-Forward"]
BACKWARD = ["Peak Backward", "Before Pre-Backward", "After Pre-Backward", "Before Post-Backward", "After Post-Backward"]


def parameter_bytes(module):
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    """Two units, and a root with parameters and buffers of its own."""

    def __init__(self, checkpointed=False):
        super().__init__()
        self.inp, self.norm, self.out = nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM), nn.Linear(DIM, 4)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.checkpointed = checkpointed

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.out(self.norm(x))


CONFIGURATIONS = {
    "sharded": {},
    "kept": {"reshard_after_forward": False},
    "checkpointed": {},
    "mixed": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
    "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}


class Run:
    """Training steps under a tracker, and what the tracker said on the way."""

    def __init__(self, kind, mesh, configuration, num_iterations=1):
        self.held, self.states, self.peaks = [], [], []
        with FakeTensorMode() if configuration == "mixed" else nullcontext():  # not every CPU multiplies in bfloat16
            model = Net(checkpointed=configuration == "checkpointed")
            for unit in (*model.layers, model):
                fully_shard(unit, mesh=mesh, **CONFIGURATIONS[configuration])
            optimizer, x = torch.optim.SGD(model.parameters(), momentum=0.9), torch.randn(4, DIM)
            self.tracker = tracker = kind(model, optimizer)
            tracker.track_inputs((x, {"not a tensor": 1}))
            with tracker:
                for _ in range(num_iterations):
                    loss = model(x).sum()
                    self.note()
                    loss.backward()
                    self.note()
                    optimizer.step()
                    self.note()
                    optimizer.zero_grad()
                    self.note()
                    self.states.append(states(tracker))
                    self.peaks.append(in_words(tracker.get_tracker_snapshot("peak"))["cpu"])
                    tracker.reset_mod_stats()

    def note(self):
        self.held.append(in_words(self.tracker.get_tracker_snapshot()))


def last_gradient_bytes(unit, configuration):
    """Of a unit's last parameter, a bias."""
    numel = 4 if unit == "FSDPNet" else DIM
    return numel * (2 if configuration == "mixed" else 4)


def assert_same_states(theirs, ours, configuration):
    assert set(ours) == set(theirs) == set(UNITS)
    for unit, by_state in ours.items():
        assert list(by_state) == list(theirs[unit])
        for state, taken in by_state.items():
            for expected, found in zip(theirs[unit][state], taken, strict=True):
                expected, found = expected["cpu"], found["cpu"]
                assert list(found) == list(expected)
                excess = expected["Total"] - found["Total"]
                if state == "After Post-Backward":
                    assert excess == last_gradient_bytes(unit, configuration)
                elif state == "Peak Backward":
                    assert excess == 0 or (unit == "FSDPNet.layers.1" and excess > 0)
                else:
                    assert {key: found[key] for key in ALL_ITS_LIFE} == {key: expected[key] for key in ALL_ITS_LIFE}, (unit, state)


@pytest.mark.parametrize(
    ("world", "configuration"),
    [(2, "sharded"), (4, "sharded"), (4, "kept"), (4, "checkpointed"), (2, "mixed"), (4, "offloaded")],
    indirect=["world"],
)
def test_a_step(world, configuration):
    theirs, ours = (Run(kind, world, configuration) for kind in KINDS)
    assert ours.held == theirs.held
    assert {key: ours.peaks[0][key] for key in ALL_ITS_LIFE} == {key: theirs.peaks[0][key] for key in ALL_ITS_LIFE}
    assert_same_states(theirs.states[0], ours.states[0], configuration)


def test_a_units_backward_is_its_own(world):
    """Its peak is at least what it held at any moment that we know of, and not what the next unit's unsharding added."""
    theirs, ours = (Run(kind, world, "sharded").states[0]["FSDPNet.layers.1"] for kind in KINDS)
    own = max(snapshot["cpu"]["Total"] for state in BACKWARD[1:] for snapshot in ours[state])
    assert own <= ours["Peak Backward"][0]["cpu"]["Total"] < theirs["Peak Backward"][0]["cpu"]["Total"]
    assert ours["Peak Backward"][0]["cpu"]["Sharded Grad"] == 0  # its own is not there yet
    assert theirs["Peak Backward"][0]["cpu"]["Sharded Grad"] == parameter_bytes(Block()) / 4


def test_a_second_iteration_in_pytorch_after_a_reset(world):
    theirs, ours = (Run(kind, world, "sharded", num_iterations=2) for kind in KINDS)
    assert ours.held == theirs.held
    for expected, found in zip(theirs.states, ours.states, strict=True):
        assert_same_states(expected, found, "sharded")


def test_many_iterations_without_a_reset(world):
    """PyTorch raises in the second."""
    model = Net()
    for unit in (*model.layers, model):
        fully_shard(unit, mesh=world)
    tracker = FSDPMemTracker(model)
    with tracker:
        for _ in range(3):
            model(torch.randn(4, DIM)).sum().backward()
    for by_state in states(tracker).values():
        assert {state: len(taken) for state, taken in by_state.items()} == dict.fromkeys(FORWARD + BACKWARD, 3)
    assert current(tracker)["Sharded Grad"] == current(tracker)["Sharded Param"]


def test_a_unit_with_several_outputs(world):
    """FSDP gets ready for the backward of each output, and is done once."""

    class Fork(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

        def forward(self, x):
            return self.left(x), self.right(x)

    def run(kind):
        model = nn.Sequential(Fork())
        fully_shard(model[0], mesh=world)
        fully_shard(model, mesh=world)
        tracker = kind(model)
        with tracker:
            left, right = model(torch.randn(4, DIM))
            (left.sum() + right.sum()).backward()
        return {
            state: [snapshot["cpu"]["Total"] for snapshot in taken] for state, taken in states(tracker)["FSDPSequential.0"].items()
        }

    theirs, ours = (run(kind) for kind in KINDS)
    assert {state: len(taken) for state, taken in ours.items()} == {state: len(taken) for state, taken in theirs.items()}
    assert len(ours["Peak Backward"]) == 2
    assert min(ours["Peak Backward"]) >= max(ours["Before Post-Backward"])


def test_a_grouped_unit_is_one_unit(world):
    """Each of its modules is in ``memory_tracking``, with what FSDP does once for all of them."""
    model = nn.Sequential(nn.Linear(DIM, DIM), nn.LayerNorm(DIM), nn.Linear(DIM, 4))
    whole = parameter_bytes(model[1]) + parameter_bytes(model[2])
    fully_shard([model[1], model[2]], mesh=world)
    fully_shard(model, mesh=world)
    tracker = FSDPMemTracker(model)
    with tracker:
        model(torch.randn(4, DIM)).sum().backward()
    units = states(tracker)
    norm, out = units["FSDPSequential.1"], units["FSDPSequential.2"]
    assert set(norm) == set(out) == {*FORWARD, *BACKWARD}

    def unsharded(unit, state):
        """Besides the root's own, which stay."""
        return unit[state][0]["cpu"]["Unsharded Param"] - (DIM * DIM + DIM) * 4

    assert (unsharded(norm, "Before Pre-Forward"), unsharded(norm, "After Pre-Forward")) == (0, whole)
    assert (unsharded(out, "Before Pre-Forward"), unsharded(out, "After Pre-Forward")) == (whole, whole)
    assert (unsharded(out, "Before Post-Forward"), unsharded(out, "After Post-Forward")) == (whole, 0)
    for state in BACKWARD:
        assert norm[state] == out[state]


@pytest.mark.parametrize("tabulate", [False, True])
def test_units_are_printed_alike(world, capsys, tabulate):
    def shown_by(kind):
        model = Net()
        for unit in (*model.layers, model):
            fully_shard(unit, mesh=world)
        tracker = kind(model)
        with tracker:
            model(torch.randn(4, DIM)).sum().backward()
        capsys.readouterr()
        tracker.display_modulewise_snapshots(depth=3, units="KiB", tabulate=tabulate)
        return capsys.readouterr().out

    theirs, ours = (re.sub(r"[0-9.]+ KiB", "# KiB", shown_by(kind)) for kind in KINDS)
    assert re.sub("[ =]+", " ", ours) == re.sub("[ =]+", " ", theirs)
    assert re.findall("Module:  (.*)", ours) == UNITS


def test_only_fsdp_modules_are_taken(world):
    with pytest.raises(AssertionError, match="only supports FSDP modules"):
        TorchFSDPMemTracker(nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="only supports FSDP modules"):
        FSDPMemTracker(nn.Linear(2, 2))


def test_external_tensors_are_not_tracked(world):
    model, tensor = nn.Linear(DIM, DIM, bias=False), torch.ones(100)
    fully_shard(model, mesh=world)
    for kind in KINDS:
        tracker = kind(model)
        tracker.track_external(tensor)
        with tracker:
            assert current(tracker)["Total"] == DIM * DIM * 4 / 4


PRE, POST = "enter pre-backward a; exit", "enter post-backward a; exit"


@pytest.mark.parametrize(
    ("script", "peaks"),
    [
        (f"{PRE}; alloc 1 x; {POST}; alloc 2 y", [1]),
        (f"{PRE}; alloc 1 x; {POST}; alloc 2 y; {POST}; alloc 4 z", [3]),  # FSDP1: reshards, then reduces
        (f"{PRE}; alloc 1 x; {PRE}; alloc 2 y; {POST}; free x; alloc 8 z", [3, 3]),  # a unit with two outputs
        (f"{PRE}; alloc 1 x; {POST}; free x; alloc 8 y; free y; {PRE}; alloc 2 z; {POST}", [1, 2]),
        (f"{PRE}; alloc 1 x", [1]),  # backward raised
        (f"alloc 4 before; {POST}; {PRE}; alloc 1 x; {POST}; free before", [5]),
    ],
)
def test_the_peak_of_a_backward_is_between_unsharding_and_the_last_reduction(script, peaks):
    found = _backward_peaks(ledger(script), since=-1)
    assert [sum(snapshot["cpu"].values()) for _, _, snapshot in found] == peaks
