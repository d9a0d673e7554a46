"""Which stream memory comes from."""

from __future__ import annotations

import torch

import memfit
from memfit.predict.result import Prediction


def streams_of(prediction: Prediction, op: str) -> list[int]:
    ledger = prediction.ledger
    return [
        int(stream) for stream, number in zip(ledger.blocks.stream, ledger.blocks.op, strict=True) if ledger.strings[number] == op
    ]


def test_backward_runs_on_the_streams_of_forward():
    def build():
        side = torch.cuda.Stream()
        weight = torch.ones(1024, device="cuda", requires_grad=True)

        def step():
            with torch.cuda.stream(side):
                on_side = weight.exp()
            on_side.sin().sum().backward()

        return step

    prediction = memfit.predict(build, steps=1)
    assert streams_of(prediction, "aten.exp.default") == [1]
    assert streams_of(prediction, "aten.sin.default") == [0]
    # The gradient of sin is made where sin ran, that of exp where exp ran.
    assert streams_of(prediction, "aten.mul.Tensor") == [0, 1]


def test_a_stream_entered_without_gradients_owns_no_nodes():
    def build():
        side = torch.cuda.Stream()
        weight = torch.ones(1024, device="cuda", requires_grad=True)

        def step():
            with torch.no_grad(), torch.cuda.stream(side):
                weight.exp()
            weight.sin().sum().backward()

        return step

    assert streams_of(memfit.predict(build, steps=1), "aten.mul.Tensor") == [0]


def test_a_storage_grows_on_the_current_stream():
    def build():
        side = torch.cuda.Stream()
        buffer = torch.zeros(5 * 2**20, device="cuda")

        def step():
            storage = buffer.untyped_storage()
            storage.resize_(0)
            with torch.cuda.stream(side):
                storage.resize_(20 * 2**20)

        return step

    assert memfit.predict(build, steps=2).peak_reserved == 2 * 20 * 2**20


def test_emptying_the_cache_gives_memory_back():
    reserved = []

    def build():
        def step():
            torch.zeros(5 * 2**20, device="cuda")
            torch.cuda.empty_cache()
            reserved.append(torch.cuda.memory_reserved())
            torch.zeros(10 * 2**20, device="cuda")

        return step

    prediction = memfit.predict(build, steps=1)
    assert reserved == [0]
    assert prediction.peak_reserved == 40 * 2**20
