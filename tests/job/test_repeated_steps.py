"""A step of a model by name that would do the same again is written down again: what comes out is what running it gives."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from helpers.tiny_models import TINY, TINY_DEEPSEEK

import memfit
from memfit.job import Recipe
from memfit.job.configuration import build_recipe
from memfit.ledger.schema import TABLES
from memfit.models import MODELS
from memfit.predict.session import PhantomSession
from memfit.regular import regular

SMALL = {"model": "tiny", "seq": 64}
WAYS = {
    "one GPU": (1, 0, {}),
    "fsdp in parts": (4, 3, {"microbatches": 2, "batch": 2, "checkpointing": "selective"}),
    "fsdp, unequal shards": (3, 2, {"optimizer": "adamw-fused"}),
    "tensor": (4, 1, {"tp": 2, "checkpointing": "full"}),
    "the last stage": (4, 3, {"pp": 2, "batch": 4}),
    "a stage in the middle": (3, 1, {"model": "tiny-deep", "pp": 3, "batch": 6}),
    "context": (4, 1, {"cp": 2, "microbatches": 2, "batch": 2}),
    "experts": (4, 1, {"model": "tiny-deepseek", "ep": 2}),
    "compiled": (2, 1, {"compile": "blocks", "pp": 2, "batch": 4}),
}


@pytest.fixture(autouse=True)
def more_models(monkeypatch: pytest.MonkeyPatch):
    for config in (TINY_DEEPSEEK, replace(TINY, name="tiny-deep", layers=5)):
        monkeypatch.setitem(MODELS, config.name, config)


def predict(way: tuple, steps: int = 3):
    world_size, rank, options = way
    return memfit.predict(gpu="H200", world_size=world_size, rank=rank, steps=steps, **SMALL | options)


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many steps were not run, by prediction."""
    found: list[int] = []
    original = PhantomSession.repeated

    def noting(session, times, num_events, assumed):
        found.append(times)
        return original(session, times, num_events, assumed)

    monkeypatch.setattr(PhantomSession, "repeated", noting)
    return found


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_written_down_again_or_run_again(way: tuple, repeated: list[int], monkeypatch: pytest.MonkeyPatch):
    if "tp" in way[2]:
        predict(way, steps=1)  # the first DTensor of a process makes a tensor of four bytes on the host
    shortened = predict(way)
    assert repeated == [1]
    monkeypatch.setattr(PhantomSession, "last_step_left_all_as_it_was", lambda session: False)
    whole = predict(way)
    assert repeated == [1]
    shortened.ledger.check()
    assert_same(shortened, whole)


def assert_same(shortened, whole):
    for table in TABLES:
        for column in fields(table):
            ours, theirs = (getattr(getattr(run.ledger, table.NAME), column.name) for run in (shortened, whole))
            if column.name.endswith("_ns"):
                assert np.abs(ours - theirs).max(initial=0) <= 3, (table.NAME, column.name)  # sums of floats, in another order
            else:
                assert np.array_equal(ours, theirs), (table.NAME, column.name)
    assert shortened.ledger.strings == whole.ledger.strings
    # Steps that are written down again begin at the same distance each, so that their time is that of the run but for rounding.
    assert shortened.ledger.info.speed == pytest.approx(whole.ledger.info.speed, rel=1e-3)
    assert replace(shortened.ledger.info, speed={}) == replace(whole.ledger.info, speed={})
    for column in ("stream", "cost", "scope"):
        assert np.array_equal(*(getattr(run.time.spans, column) for run in (shortened, whole)))
    for column in ("begin", "seconds"):
        assert np.allclose(*(getattr(run.time.spans, column) for run in (shortened, whole)), rtol=1e-9, atol=1e-12)
    marks = [[(mark.seconds, mark.span, mark.host_seconds) for mark in run.time.steps] for run in (shortened, whole)]
    assert np.allclose(*marks, rtol=1e-9)
    assert (shortened.steps, shortened.init, shortened.smallest_fit) == (whole.steps, whole.init, whole.smallest_fit)
    assert shortened.step_seconds == pytest.approx(whole.step_seconds, rel=1e-9)


def test_a_step_that_keeps_something_is_run_every_time(repeated: list[int]):
    """Also where it is said to be regular: here, until the fourth keeps nothing."""
    kept, numbers = [], []

    def build():
        inner = build_recipe(Recipe(**SMALL))

        @regular
        def step():
            inner()
            numbers.append(len(numbers))
            if len(numbers) < 4:
                kept.append(torch.empty(1024, device="cuda"))

        return step

    found = memfit.predict(build, gpu="H200", steps=7)
    assert numbers == [0, 1, 2, 3]
    assert repeated == [3]
    assert len(found.steps) == 7


def test_what_is_no_named_model_is_run(repeated: list[int]):
    numbers = []

    def build():
        step = build_recipe(Recipe(**SMALL))

        def counted():
            numbers.append(len(numbers))
            step()

        return counted

    memfit.predict(build, gpu="H200", steps=4)
    assert numbers == [0, 1, 2, 3]
    assert not repeated


def test_ddp_makes_its_buckets_again_in_the_second_step(repeated: list[int]):
    """A bucket takes the place of an equal one then, and in no later step: what was left behind does not tell."""
    found = predict((2, 0, {"strategy": "no_shard"}))
    assert not repeated
    second, third = np.diff([*found.ledger.step_starts[1:], len(found.ledger.events)])
    assert second != third


def test_two_steps_are_both_run(repeated: list[int]):
    predict(WAYS["one GPU"], steps=2)
    assert not repeated
