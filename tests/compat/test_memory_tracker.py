"""``MemoryTracker``: readings after each operator, on a phantom GPU and on the CPU; files of PyTorch's tracker and ours."""

import collections
import pickle
import re
import sys
import types

import pytest
import torch
from torch import nn
from torch.distributed._tools.memory_tracker import MemoryProfileDispatchMode as TorchMode
from torch.distributed._tools.memory_tracker import MemoryTracker as TorchMemoryTracker

import memfit
from memfit.compat import MemoryProfileDispatchMode, MemoryTracker
from memfit.errors import ConfigError
from memfit.units import MIB

WIDE = 1024 * 1024 // 4
"""So many numbers are a MiB."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.ReLU()

    def forward(self, x):
        return self.second(self.first(x))


def monitored(kind, device):
    model, tracker = Net().to(device), kind()
    tracker.start_monitor(model)
    loss = model(torch.randn(4, 8, device=device)).sum()
    kept = torch.zeros(3 * WIDE, device=device)
    loss.backward()
    tracker.stop()
    assert kept is not None
    return tracker


def summary_of(tracker, capsys, **options):
    capsys.readouterr()
    tracker.summary(**options)
    return capsys.readouterr().out


def test_on_the_cpu_the_recorder_tells():
    """PyTorch's asks an accelerator, and fails without one."""
    tracker = monitored(MemoryTracker, "cpu")
    names = [name for name, _ in tracker.memories_allocated.values()]
    assert names[:2] == [".randn.default_0", "first.forward.t.default_0"]
    assert "second.forward.relu.default_0" in names
    assert tracker._markers == {"fw_start": 1, "fw_bw_boundary": 1 + names.index("second.forward.relu.default_0")}
    sizes = dict(tracker.memories_allocated.values())
    parameters = (8 * 8 + 8) * 4 / MIB
    assert sizes[".randn.default_0"] == parameters + 4 * 8 * 4 / MIB
    assert max(sizes.values()) > 3
    assert tracker.memories_allocated == tracker.memories_active == tracker.memories_reserved
    assert tracker._op_index == len(tracker.memories_allocated) == sum(tracker._operator_names.values())
    assert not tracker._hooks


class Readings:
    """What a mode asks of a tracker."""

    def __init__(self, name):
        self._cur_module_name, self._operator_names, self.seen = name, collections.defaultdict(int), []

    def _record_memory_stats(self, name):
        self.seen.append(name)


@pytest.mark.parametrize("kind", [MemoryProfileDispatchMode, TorchMode])
def test_a_mode_has_any_tracker_read_after_each_operator(kind):
    tracker = Readings("net.forward")
    with kind(tracker):
        (torch.ones(2) + 1).detach().add(2)
    assert tracker.seen == [f"net.forward.{name}" for name in ("ones.default_0", "add.Tensor_0", "add.Tensor_1")]
    assert tracker._operator_names == {"ones.default": 1, "add.Tensor": 2}


def test_on_a_phantom_gpu_the_allocator_tells():
    seen = {}

    def build():
        def step():
            for kind in (MemoryTracker, TorchMemoryTracker, MemoryTracker):  # the first time takes cuBLAS's workspaces for good
                torch.cuda.empty_cache()
                seen[kind] = monitored(kind, "cuda")

        return step

    memfit.predict(build, gpu="H200", steps=1)
    theirs, ours = seen[TorchMemoryTracker], seen[MemoryTracker]
    assert list(ours.memories_allocated.values()) == list(theirs.memories_allocated.values())
    assert list(ours.memories_reserved.values()) == list(theirs.memories_reserved.values())
    assert list(ours.memories_active.values()) == list(theirs.memories_active.values())
    assert ours._markers == theirs._markers
    assert max(size for _, size in ours.memories_reserved.values()) >= 3


def test_the_summary_is_printed_alike(capsys):
    ours, theirs = monitored(MemoryTracker, "cpu"), TorchMemoryTracker()
    theirs.memories_allocated, theirs._op_index = ours.memories_allocated, ours._op_index
    for options in ({}, {"top": 2}):
        printed = summary_of(ours, capsys, **options)
        assert printed == summary_of(theirs, capsys, **options)
    assert re.search(r"Top 2 ops.*\nsecond\.forward\.zeros\.default_0: 3\.\d*MB\n", printed)
    assert "Top 20 ops" in summary_of(MemoryTracker(), capsys), "also where nothing was read"


@pytest.mark.parametrize(("saving", "loading"), [(MemoryTracker, TorchMemoryTracker), (TorchMemoryTracker, MemoryTracker)])
def test_each_reads_what_the_other_saved(saving, loading, tmp_path):
    source, saved, loaded = monitored(MemoryTracker, "cpu"), saving(), loading()
    saved.memories_allocated |= source.memories_allocated
    saved._markers |= source._markers
    saved._num_alloc_retries = 2
    saved.save_stats(str(tmp_path / "stats"))
    loaded.load(str(tmp_path / "stats"))
    assert dict(loaded.memories_allocated) == source.memories_allocated
    assert dict(loaded._markers) == source._markers
    assert loaded._num_alloc_retries == 2


def test_what_was_loaded_can_be_summed_up(tmp_path, capsys):
    saved, loaded = monitored(MemoryTracker, "cpu"), MemoryTracker()
    saved.save_stats(str(tmp_path / "stats"))
    loaded.load(str(tmp_path / "stats"))
    assert summary_of(loaded, capsys) == summary_of(saved, capsys)


def test_a_file_that_could_run_something_is_refused(tmp_path):
    path = tmp_path / "stats"
    path.write_bytes(pickle.dumps({"memories_allocated": print}))
    with pytest.raises(ConfigError, match=r"asks for builtins\.print"):
        MemoryTracker().load(str(path))
    path.write_bytes(pickle.dumps({"markers": {}}))
    with pytest.raises(ConfigError, match="has no memories_allocated, memories_active, memories_reserved, num_alloc_retries"):
        MemoryTracker().load(str(path))


def test_it_is_started_and_stopped_in_turn():
    tracker, model = MemoryTracker(), Net()
    with pytest.raises(AssertionError, match="monitors nothing"):
        tracker.stop()
    tracker.start_monitor(model)
    assert tracker._hooks
    with pytest.raises(AssertionError, match="monitors a module already"):
        tracker.start_monitor(model)
    tracker.stop()
    tracker.start_monitor(model)
    tracker.stop()
    assert not model._forward_hooks
    assert not model.first._forward_pre_hooks


class Drawing:
    """In the place of matplotlib, which is not needed otherwise: what is drawn, a list of labels for each figure."""

    def __init__(self):
        self.figures = []

    def subplots(self):
        self.figures.append([])
        return None, self

    def plot(self, sizes, label):
        assert max(sizes) > 3
        self.figures[-1].append(label)

    def axvline(self, at, color, label):
        self.figures[-1].append(f"{label} at {at}")

    def set(self, **words): ...

    def legend(self): ...


def test_traces_are_drawn(monkeypatch, tmp_path):
    drawing, tracker = Drawing(), monitored(MemoryTracker, "cpu")
    monkeypatch.setitem(sys.modules, "matplotlib", types.SimpleNamespace(pyplot=drawing))
    tracker.save_stats(str(tmp_path / "stats"))
    MemoryTracker().show_traces(str(tmp_path / "stats"))
    kinds = ["allocated_memory", "active_memory", "reserved_memory"]
    marks = [f"{name} at {at}" for name, at in tracker._markers.items()]
    assert drawing.figures == [[*kinds, *marks], *([kind, *marks] for kind in kinds)]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        tracker.show_traces()
