"""A tracker belongs to its thread; several threads can each have one."""

from __future__ import annotations

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.utils import _python_dispatch

import memfit
from memfit.ledger import Ledger
from memfit.record import run_hooks
from memfit.record.listener import Listener
from memfit.torch_compat.dispatch import modes_of_this_thread
from memfit.torch_compat.patches import active_patches

STEPS = 10


def train(tracker: memfit.Tracker, model: nn.Module, optimizer: torch.optim.Optimizer, together: threading.Barrier) -> None:
    together.wait()
    with tracker:
        for _ in range(STEPS):
            model(torch.ones(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def sizes(ledger: Ledger) -> list[tuple[int, int]]:
    """What happened, in no order: Python's garbage collector may free a tensor in whichever thread it runs."""
    return sorted((int(kind), int(size)) for kind, size in zip(ledger.events.kind, ledger.events.size, strict=True))


def tracked(num_threads: int) -> list[Ledger]:
    together = threading.Barrier(num_threads)
    jobs = []
    for _ in range(num_threads):
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        optimizer = torch.optim.Adam(model.parameters())
        jobs.append((memfit.track(model, optimizer), model, optimizer, together))
    threads = [threading.Thread(target=train, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [tracker.ledger.check() for tracker, *_ in jobs]


@pytest.mark.parametrize("num_threads", [2, 4])
def test_every_thread_has_its_own_ledger(num_threads: int):
    (alone,) = tracked(1)
    flags = vars(_python_dispatch)["_is_in_torch_dispatch_mode"]
    for ledger in tracked(num_threads):
        assert ledger.info.complete
        assert len(ledger.step_starts) == STEPS
        assert sizes(ledger) == sizes(alone)
    assert vars(_python_dispatch)["_is_in_torch_dispatch_mode"] == flags
    assert active_patches() == []


def test_two_threads_that_begin_at_once_install_the_hooks_once(monkeypatch: pytest.MonkeyPatch):
    """The first is held where it has begun to install them; the second must wait for it, or install them as well."""
    install, entered, second = run_hooks._install, threading.Event(), threading.Event()
    num_installed = []

    def slow_install() -> None:
        num_installed.append(1)
        entered.set()
        second.wait(0.2)  # with a lock, the second never gets here while the first is held
        install()

    monkeypatch.setattr(run_hooks, "_install", slow_install)
    listeners = [Listener(), Listener()]

    def attach_second() -> None:
        entered.wait()
        run_hooks.attach(listeners[1])
        second.set()

    thread = threading.Thread(target=attach_second)
    thread.start()
    run_hooks.attach(listeners[0])
    thread.join()
    for listener in listeners:
        run_hooks.detach(listener)
    assert len(num_installed) == 1
    assert active_patches() == []


def test_left_in_another_thread_it_says_so_and_the_run_goes_on():
    model = nn.Linear(2, 2)
    tracker = memfit.track(model)
    tracker.__enter__()
    told: list[str] = []

    def leave() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tracker.__exit__(None, None, None)
        told.extend(str(warning.message) for warning in caught)

    thread = threading.Thread(target=leave)
    thread.start()
    thread.join()
    assert "in another thread than it was entered in" in told[0]
    assert not tracker.ledger.info.complete
    assert model(torch.ones(1, 2)).shape == (1, 2)
    for mode in modes_of_this_thread():  # what the other thread could not take away
        _python_dispatch.TorchDispatchMode.__exit__(mode, None, None, None)


@pytest.mark.parametrize("inner_first", [True, False])
def test_trackers_are_left_in_any_order(inner_first: bool):
    model, flags = nn.Linear(8, 8), dict(vars(_python_dispatch))
    one, two = memfit.track(model), memfit.track(model)
    one.__enter__()
    two.__enter__()
    model(torch.ones(4, 8))
    first, second = (two, one) if inner_first else (one, two)
    first.__exit__(None, None, None)
    model(torch.ones(4, 8))
    second.__exit__(None, None, None)
    assert (len(first.ledger.check().scopes), len(second.ledger.check().scopes)) == (1, 2)
    assert modes_of_this_thread() == []
    assert active_patches() == []
    assert {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in")} == {
        name: value for name, value in flags.items() if name.startswith("_is_in")
    }
