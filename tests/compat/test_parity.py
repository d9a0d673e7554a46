"""Where PyTorch's trackers have no fault, ours say the same of the same work: figures, states, attributes, printed lines.

Totals are equal to the byte. Categories are equal too, except where ours decide by what a block turned out to be and PyTorch's by
when it was made: a gradient is ``Temp`` to PyTorch until autograd hands it over, a temporary of the optimizer is ``Optstate``.
"""

import re

import pytest
import torch
from helpers.tracker_readings import MemTracker, TorchMemTracker, current, in_words, states
from torch import nn
from torch.distributed._tools import fsdp2_mem_tracker, mem_tracker
from torch.utils.checkpoint import checkpoint

from memfit.compat.trackers import torch_categories as words

KINDS = [TorchMemTracker, MemTracker]
DECIDED_BY_TIME = {"Gradient", "Activation", "Temp", "Optstate"}
"""Categories that PyTorch may give to a block for a part of its life only."""

F32 = 4


class Shared(nn.Module):
    """One layer called twice."""

    def __init__(self):
        super().__init__()
        self.twice, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(self.twice(torch.relu(self.twice(x))))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.out = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(checkpoint(self.block, x, use_reentrant=False))


class Tied(nn.Module):
    """A language model: integer inputs, attention, dropout, one weight in two places."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(10, 16), nn.Linear(16, 10, bias=False)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.layer(self.embed(tokens)))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)), nn.Linear(16, 4))


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))


MODELS = {
    "mlp": (mlp, lambda: torch.randn(5, 8)),
    "convolutions": (convolutions, lambda: torch.randn(5, 3, 8, 8)),
    "shared": (Shared, lambda: torch.randn(5, 16)),
    "checkpointed": (Checkpointed, lambda: torch.randn(5, 16)),
    "tied": (Tied, lambda: torch.randint(0, 10, (3, 7))),
}


class Run:
    """A training step under a tracker, and what the tracker said on the way."""

    def __init__(self, kind, name):
        torch.manual_seed(0)
        make_model, make_batch = MODELS[name]
        self.model, batch = make_model(), make_batch()
        optimizer = torch.optim.Adam(self.model.parameters(), foreach=False)
        self.tracker, self.held, self.peaks = kind(), {}, {}
        self.tracker.track_external(self.model, optimizer, batch)
        self.note("before")
        with self.tracker:
            out = self.model(batch)
            loss = out.sum()
            self.note("forward")
            loss.backward()
            del out  # from here on: what a module's backward ended with still had it
            self.note("backward")
            optimizer.step()
            self.note("step")
            optimizer.zero_grad()
            self.note("zero_grad")
        self.note("after")

    def note(self, when):
        self.held[when] = in_words(self.tracker.get_tracker_snapshot("current"))
        if when not in ("before", "zero_grad"):
            self.peaks[when] = in_words(self.tracker.get_tracker_snapshot("peak"))


@pytest.fixture(scope="module", params=MODELS)
def both(request):
    return tuple(Run(kind, request.param) for kind in KINDS)


def assert_same_but_for_time(theirs, ours):
    """Two snapshots: the same devices, totals, categories in the same order, and bytes in what is one thing all its life."""
    assert {device: list(sizes) for device, sizes in theirs.items()} == {device: list(sizes) for device, sizes in ours.items()}
    for device, sizes in ours.items():
        assert {key: size for key, size in sizes.items() if key not in DECIDED_BY_TIME} == {
            key: size for key, size in theirs[device].items() if key not in DECIDED_BY_TIME
        }


# -- figures -----------------------------------------------------------------------------------------------------------------


def test_what_is_held_between_the_parts_of_a_step(both):
    theirs, ours = both
    assert ours.held == theirs.held


def test_the_peak_so_far(both):
    theirs, ours = both
    assert ours.peaks["forward"] == theirs.peaks["forward"]
    for when, snapshot in ours.peaks.items():
        assert_same_but_for_time(theirs.peaks[when], snapshot)


def test_what_modules_hold(both):
    theirs, ours = both
    for module, twin in zip(theirs.model.modules(), ours.model.modules(), strict=True):
        assert (module in theirs.tracker.memory_tracking) == (twin in ours.tracker.memory_tracking)  # not all are ever called
        if module in theirs.tracker.memory_tracking:
            expected, found = theirs.tracker.memory_tracking[module], ours.tracker.memory_tracking[twin]
            names = ["mod_fqn", "parameter_mem", "buffer_mem", "input_mem", "output_mem", "local_peak"]
            if isinstance(module, nn.MultiheadAttention):
                names.remove("input_mem")  # see below
            for name in names:
                assert getattr(found, name) == getattr(expected, name), (found.mod_fqn, name)


def skipped(run, module):
    """Modules that are looked into but never called."""
    return module not in run.tracker.memory_tracking and isinstance(
        module, (nn.Dropout, nn.modules.linear.NonDynamicallyQuantizableLinear)
    )


def test_an_input_that_is_passed_three_times_is_one_input():
    """PyTorch adds up the query, the key and the value, which are one tensor."""
    theirs, ours = (Run(kind, "tied") for kind in KINDS)
    rows = 3 * 7 * 16 * F32
    assert ours.tracker.memory_tracking[ours.model.layer.self_attn].input_mem == rows
    assert theirs.tracker.memory_tracking[theirs.model.layer.self_attn].input_mem == 3 * rows


def test_states_of_modules(both):
    theirs, ours = (states(run.tracker) for run in both)
    assert set(ours) == set(theirs)
    for name, by_state in ours.items():
        assert list(by_state) == list(theirs[name]), name
        for state, taken in by_state.items():
            for expected, found in zip(theirs[name][state], taken, strict=True):
                if state in ("Pre-Forward", "Post-Forward", "Peak-Forward"):
                    assert found == expected, (name, state)
                assert_same_but_for_time(expected, found)


def test_a_model_that_was_not_given_is_found_when_it_is_called():
    def held_in_the_end(kind):
        with kind() as tracker:
            model = mlp()
            model(torch.randn(5, 8)).sum().backward()
            return current(tracker)

    theirs, ours = (held_in_the_end(kind) for kind in KINDS)
    assert ours == theirs == {"Parameter": 2064, "Gradient": 2064, "Total": 4128}


def test_keyword_arguments_and_inference():
    """PyTorch does not look at keyword arguments."""

    class Adder(nn.Module):
        def forward(self, left, *, right):
            return left + right

    def run(kind):
        module, left, right = Adder(), torch.ones(100), torch.ones(100)
        tracker = kind()
        tracker.track_external(left, right)
        with tracker, torch.no_grad():
            module(left, right=right)
        return tracker.memory_tracking[module]

    theirs, ours = (run(kind) for kind in KINDS)
    assert list(ours.snapshots) == list(theirs.snapshots) == ["Peak-Forward", "Pre-Forward", "Post-Forward"]
    assert (theirs.input_mem, theirs.output_mem) == (400, 400)
    assert (ours.input_mem, ours.output_mem) == (800, 400)


def test_reentrant_checkpointing():
    """PyTorch sees no backward of what was first run without gradients; autograd's own nodes tell us of it."""

    def run(kind):
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        x = torch.randn(5, 16, requires_grad=True)
        tracker = kind()
        tracker.track_external(model, x)
        with tracker:
            checkpoint(model, x, use_reentrant=True).sum().backward()
        return states(tracker), current(tracker)["Total"]

    (theirs, held), (ours, held_by_ours) = (run(kind) for kind in KINDS)
    assert held_by_ours == held
    in_forward = ["Peak-Forward", "Pre-Forward", "Post-Forward", "Pre-Forward-AC", "Post-Forward-AC"]
    for name, by_state in theirs.items():
        assert list(ours[name]) == [*in_forward, "Peak-Backward", "Pre-Backward", "Post-Backward"]
        for state in in_forward:
            assert_same_but_for_time(by_state[state][0], ours[name][state][0])
        assert "Pre-Backward" not in by_state


# -- words -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (mem_tracker._MemRefType, words.MemRefType),
        (mem_tracker._ModState, words.ModState),
        (fsdp2_mem_tracker._FSDPRefType, words.FSDPRefType),
        (fsdp2_mem_tracker._FSDPModState, words.FSDPModState),
    ],
)
def test_words_are_the_same_and_read_each_others_snapshots(theirs, ours):
    assert [(word.name, word.value) for word in ours] == [(word.name, word.value) for word in theirs]
    assert {word: word.value for word in ours} == {word: word.value for word in theirs}  # equal, and equal as keys


# -- printed -----------------------------------------------------------------------------------------------------------------


def printed(capsys, show, *args, **kwargs):
    capsys.readouterr()
    show(*args, **kwargs)
    return capsys.readouterr().out


@pytest.mark.parametrize("tabulate", [False, True])
@pytest.mark.parametrize("units", ["B", "KiB", "MiB", "GiB"])
@pytest.mark.parametrize("type", ["current", "peak"])
def test_a_snapshot_is_printed_alike(capsys, type, units, tabulate):
    def shown_by(kind):
        tracker, model, x = kind(), nn.Linear(100, 100), torch.randn(30, 100)
        tracker.track_external(model, x)
        with tracker:
            model(x).sum().backward()
        return printed(capsys, tracker.display_snapshot, type, units, tabulate)

    theirs, ours = (shown_by(kind) for kind in KINDS)
    assert "Total" in ours or units == "GiB"  # where nothing is left of it but noughts, a device is not shown
    if type == "current":
        assert ours == theirs
    else:
        assert without_time(ours) == without_time(theirs)


def test_an_empty_snapshot_is_printed_alike(capsys):
    for tabulate in (False, True):
        for units in ("B", "furlongs"):
            theirs, ours = (printed(capsys, kind().display_snapshot, "current", units, tabulate) for kind in KINDS)
            assert ours == theirs == "No memory tracked.\n"


def without_time(text):
    """The lines of a listing or the cells of a table, without the bytes of categories that PyTorch decides by time."""
    shown, columns = [], []
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line)
        if "Total" in cells:
            columns = [i for i, cell in enumerate(cells) if cell not in DECIDED_BY_TIME]
        if "===" not in line and line.strip().partition(":")[0] not in DECIDED_BY_TIME:
            shown.append([cells[i] for i in columns] if len(cells) > 2 else line)
    return shown


@pytest.mark.parametrize("tabulate", [False, True])
@pytest.mark.parametrize(("depth", "units"), [(1, "B"), (2, "KiB"), (9, "B")])
def test_modules_are_printed_alike(capsys, both, depth, units, tabulate):
    theirs, ours = (printed(capsys, run.tracker.display_modulewise_snapshots, depth, units, tabulate) for run in both)
    assert without_time(ours) == without_time(theirs)
    names = re.findall("Module:  (.*)", ours)
    assert names
    assert max(name.count(".") for name in names) < depth


def test_layers_are_printed_in_the_order_of_their_numbers(capsys):
    for kind in KINDS:
        model = nn.Sequential(*(nn.ReLU() for _ in range(11)))
        with kind() as tracker:
            model(torch.randn(3))
        names = re.findall("Module:  (.*)", printed(capsys, tracker.display_modulewise_snapshots))
        assert names == ["Sequential", *(f"Sequential.{i}" for i in range(11))]


# -- refused -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_nonsense_is_refused_alike(kind):
    tracker, model = kind(), nn.Linear(2, 2)
    tracker.track_external(model, None, [torch.ones(3), {"nested": torch.ones(3)}])
    with pytest.raises(ValueError, match="Invalid type last"):
        tracker.get_tracker_snapshot("last")
    with pytest.raises(ValueError, match="Invalid type last"):
        tracker.display_snapshot("last")
    with pytest.raises(ValueError, match=r"Unsupported unit: MB\. Supported units are: B, KiB, MiB, GiB"):
        tracker.display_snapshot(units="MB")
    with pytest.raises(TypeError):
        tracker.track_external("a model")


def test_a_snapshot_is_the_callers_to_change():
    for kind in KINDS:
        tracker, held = kind(), torch.ones(3)
        tracker.track_external(held)
        tracker.get_tracker_snapshot()[torch.device("cpu")]["Total"] = 0
        assert current(tracker)["Total"] == 12
