"""A run that is recorded from the history is not changed, nothing is left of it, and whatever goes wrong, the run goes on."""

import threading
import warnings

import pytest
import torch
from helpers.simulated_history import SimulatedHistory
from torch import nn

from memfit.analysis import find_peak
from memfit.errors import ConfigError
from memfit.ledger import Category, Ledger, Phase
from memfit.record.tracker import Tracker, choose_witness, why_no_history
from memfit.torch_compat.patches import active_patches


class Quiet(SimulatedHistory):
    """Without its dispatch mode: it hears of nothing, and changes nothing."""

    def __enter__(self):
        return self

    def __exit__(self, *args): ...


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.drop = nn.Linear(16, 32), nn.Linear(32, 4), nn.Dropout(0.1)

    def forward(self, x, scale=1.0):
        return self.second(self.drop(torch.relu(self.first(x)))) * scale


def train(steps=8, net=None):
    torch.manual_seed(0)
    net = net or Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = net(torch.randn(8, 16), scale=2.0).pow(2).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
        optimizer.zero_grad()
    return losses, loss, net


def test_it_computes_the_same_bit_for_bit():
    bare, _, _ = train()
    with Tracker(history=Quiet()):
        tracked, _, _ = train()
    assert all(torch.equal(one, other) for one, other in zip(bare, tracked, strict=True))


def test_nothing_is_left_behind():
    call, run = nn.Module.__call__, torch.autograd._engine_run_backward
    history = Quiet()
    with Tracker(history=history) as tracker:
        _, _, net = train(steps=2)
        kept = net(torch.randn(8, 16)).sum()  # a graph that lives on, with hooks in it
    assert nn.Module.__call__ is call
    assert torch.autograd._engine_run_backward is run
    assert active_patches() == []
    assert not history.is_on
    num_rows = tracker._session._marks.count
    kept.backward()
    assert tracker._session._marks.count == num_rows, "no hook writes any more"


def test_storages_are_followed_only_where_operators_are_recorded():
    resize = torch.UntypedStorage.resize_
    with Tracker(history=Quiet()):
        assert torch.UntypedStorage.resize_ is resize
        with Tracker(witness="operators"):
            assert torch.UntypedStorage.resize_ is not resize
        assert torch.UntypedStorage.resize_ is resize


def test_backward_is_placed_without_hooks_once_it_was_seen():
    with SimulatedHistory(device="cpu") as history, Tracker(history=history) as tracker:
        train(steps=9)
        assert not tracker._session._marks.places_backward
    ledger = tracker.ledger.check()
    assert born_in_backward(ledger, step=1) == born_in_backward(ledger, step=8) != set()
    assert {"first", "second"} <= {module for module, _ in born_in_backward(ledger, step=8)}


def born_in_backward(ledger, step):
    """The modules and sizes of what was allocated in a step's backward."""
    steps = [int((ledger.step_starts <= birth).sum()) - 1 for birth in ledger.birth.tolist()]
    return {
        (ledger.module_path(int(ledger.block_module[block])), int(ledger.events.size[ledger.birth[block]]))
        for block in range(len(ledger.blocks))
        if ledger.block_phase[block] == Phase.BACKWARD and steps[block] == step
    }


def test_a_second_recording_of_a_model_needs_no_hooks():
    net = Net()
    with SimulatedHistory(device="cpu") as history:
        with Tracker(history=history) as first:
            train(steps=6, net=net)
        with Tracker(net, history=history) as second:
            train(steps=3, net=net)
            assert not second._session._marks.places_backward
        with Tracker(history=history) as of_another:
            train(steps=3)
            assert of_another._session._marks.places_backward
    assert born_in_backward(second.ledger.check(), step=2) == born_in_backward(first.ledger.check(), step=3) != set()


def test_a_model_that_surprises_gets_its_hooks_back():
    net = Net()
    with SimulatedHistory(device="cpu") as history:
        with Tracker(history=history):
            train(steps=6, net=net)
        with Tracker(history=history) as surprised:
            net(torch.randn(2, 16)).sum().backward()
            net.first(torch.randn(2, 16)).sum().backward()
        assert "of no module" in " ".join(surprised.ledger.info.notes)
        with Tracker(history=history) as careful:
            train(steps=1, net=net)
            assert careful._session._marks.places_backward


def test_a_backward_that_was_not_seen_before_brings_the_hooks_back():
    with SimulatedHistory(device="cpu") as history, Tracker(history=history) as tracker:
        _, _, net = train(steps=9)
        assert not tracker._session._marks.places_backward
        net.first(torch.randn(2, 16)).sum().backward()
        tracker.ledger.check()
        tracker.step()
        tracker.step()
        assert tracker._session._ledger.joiner.plans.num_unplaced == 1


def test_an_error_in_a_module_leaves_no_scope_open():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    with SimulatedHistory(device="cpu") as history, Tracker(history=history) as tracker:
        with pytest.raises(ValueError, match="broken"):
            nn.Sequential(nn.Linear(4, 4), Broken())(torch.randn(2, 4))
        nn.Linear(4, 4)(torch.randn(2, 4))
    ledger = tracker.ledger.check()
    assert (ledger.scope_exit < len(ledger.events)).all()


def test_a_recorder_that_fails_lets_the_run_go_on():
    class Failing(SimulatedHistory):
        def read(self):
            if self.num_readings:
                raise RuntimeError("no more history")
            return super().read()

    history = Failing(device="cpu")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with history, Tracker(history=history) as tracker:
            losses, _, _ = train()
    assert len(losses) == 8
    assert "no more history" in tracker.ledger.check().info.problem
    assert [str(warning.message) for warning in warned if "Your run goes on" in str(warning.message)]
    assert active_patches() == []


def test_entries_that_are_missing_are_said():
    class Forgetful(SimulatedHistory):
        def read(self):
            reading = super().read()
            return reading._replace(traces=[reading.traces[0][50:]])

    with Forgetful(device="cpu") as history, Tracker(history=history) as tracker:
        train(steps=2)
    assert "lost" in tracker.ledger.info.problem


def test_memory_that_ran_out_is_where_the_ledger_ends(tmp_path):
    file = tmp_path / "oom.memfit"
    message = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free."

    def run_out():
        with history, Tracker(history=history, on_oom=file):
            _, _, net = train(steps=2)
            held = net.first(torch.randn(64, 16))
            history.run_out(2**31)
            raise_out_of_memory(message, held)

    history = SimulatedHistory(device="cuda:0")
    with pytest.raises(torch.OutOfMemoryError):
        run_out()
    ledger = Ledger.load(file).check()
    assert ledger.info.failure.needed_bytes == 2**31
    assert ledger.info.failure.device == "cuda:0"
    sizes = ledger.events.size[ledger.birth[ledger.death == len(ledger.events)]]
    assert 64 * 32 * 4 in sizes, "what was live then is live where the ledger ends"


def raise_out_of_memory(message, held):
    raise torch.OutOfMemoryError(message)


def test_what_was_there_before_is_known_by_its_address():
    torch.manual_seed(0)
    with SimulatedHistory(device="cpu") as history:
        net, batch = Net(), torch.randn(8, 16)
        optimizer = torch.optim.AdamW(net.parameters())
        net(batch).sum().backward()
        optimizer.step()
        with Tracker(net, optimizer, batch, history=history) as tracker:
            net(batch).sum().backward()
    held = find_peak(tracker.ledger.check(), 0).breakdown
    parameters = sum(parameter.numel() * 4 for parameter in net.parameters())
    assert held[Category.PARAMETER] == held[Category.GRADIENT] == parameters
    assert held[Category.OPTIMIZER_STATE] == 2 * parameters + 4 * 4
    assert held[Category.INPUT] == 8 * 16 * 4


def test_what_other_threads_allocate_is_recorded_too():
    with SimulatedHistory(device="cpu") as history, Tracker(history=history) as tracker:
        train(steps=2)
        kept = []

        def work():
            with history:
                kept.append(torch.zeros(1000))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert 4000 in tracker.ledger.check().events.size


def test_a_tracker_that_is_entered_again_goes_on():
    with SimulatedHistory(device="cpu") as history:
        tracker = Tracker(history=history)
        with tracker:
            _, _, net = train(steps=1)
        between = torch.zeros(500)
        with tracker:
            net(torch.randn(8, 16)).sum().backward()
    ledger = tracker.ledger.check()
    assert between.nbytes in ledger.events.size
    assert len(ledger.step_numbers) == 2


def test_without_cuda_the_operators_are_asked():
    assert choose_witness(None, []) == "operators"
    assert choose_witness("operators", [nn.Linear(2, 2)]) == "operators"
    assert "no CUDA here" in why_no_history()
    with pytest.raises(ConfigError, match="no CUDA here"):
        Tracker(witness="allocator")
    with pytest.raises(ConfigError, match="choose one of operators, allocator"):
        Tracker(witness="nobody")


def test_fake_tensors_have_no_history():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert "fake" in why_no_history()


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")
def test_compiled_code_is_not_broken_by_marks():
    torch._dynamo.reset()

    def run():
        torch.manual_seed(0)
        net = Net().eval()
        return torch.compile(net, backend="eager", fullgraph=True)(torch.randn(8, 16))

    bare = run()
    with Tracker(history=Quiet()):
        torch._dynamo.reset()
        assert torch.equal(run(), bare)
    torch._dynamo.reset()


def test_steps_have_the_numbers_that_the_caller_gives():
    history = SimulatedHistory(device="cuda:0")
    with history, Tracker(history=history) as tracker:
        net = nn.Linear(8, 8)
        for number in (2, 3, 40):
            tracker.step(number)
            net(torch.randn(4, 8)).sum().backward()
    assert tracker.ledger.check().step_numbers.tolist() == [2, 3, 40]
    assert tracker.ledger.levels.last_step.tolist() == [-1, 2, 3, 40]
