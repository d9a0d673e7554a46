"""Threads inside a prediction: they work on the phantom GPU, and what they allocate and raise counts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn
from torch.utils import _python_dispatch

import memfit
from memfit.errors import NeedsGpuError, StepFailedError
from memfit.ledger import Category
from memfit.phantom.tensors.threads import OutsiderError
from memfit.torch_compat.dispatch import modes_of_this_thread
from memfit.torch_compat.patches import active_patches


def training(in_a_thread: bool) -> Callable[[], Callable[[], None]]:
    def build():
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        x = torch.randn(32, 64, device="cuda")

        def train():
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        def step():
            if in_a_thread:
                thread = threading.Thread(target=train)
                thread.start()
                thread.join()
            else:
                train()

        return step

    return build


def test_training_in_a_thread_is_predicted_as_in_the_main_one():
    plain, threaded = (memfit.predict(training(in_a_thread), steps=2) for in_a_thread in (False, True))
    threaded.ledger.check()
    assert threaded.ledger.info.complete
    assert threaded.peak_allocated == plain.peak_allocated
    assert dict(threaded.breakdown) == dict(plain.breakdown)
    assert len(threaded.ledger.scopes) == len(plain.ledger.scopes)


def test_many_threads_at_once_lose_nothing():
    def build():
        pool = ThreadPoolExecutor(4)
        kept = []

        def work(number: int) -> list[torch.Tensor]:
            layer = nn.Linear(32, 32, device="cuda")
            layer(torch.ones(4, 32, device="cuda")).sum().backward()
            return [torch.full((128,), number, device="cuda") for _ in range(50)]

        def step():
            with ThreadPoolExecutor(3) as more:
                kept.extend(pool.map(work, range(8)))
                kept.extend(more.map(work, range(8)))
            assert all(tensor.device == torch.device("cuda", 0) for tensors in kept for tensor in tensors)

        return step

    prediction = memfit.predict(build, steps=1)
    ledger = prediction.ledger.check()
    assert ledger.info.complete
    full = ledger.strings.index("aten.full.default")
    assert (ledger.blocks.op == full).sum() == 16 * 50


def test_a_thread_beside_an_open_module_leaves_its_scopes_alone():
    def build():
        inner, outer = nn.Linear(8, 8, device="cuda"), nn.Linear(8, 8, device="cuda")

        class Both(nn.Module):
            def forward(self, x):
                thread = threading.Thread(target=lambda: inner(x))
                thread.start()
                thread.join()
                return outer(x)

        model = Both()
        return lambda: model(torch.ones(4, 8, device="cuda")).sum().backward()

    ledger = memfit.predict(build, steps=2).ledger.check()
    assert ledger.info.complete
    forward = [
        ledger.strings[ledger.modules.kind[m]] for m, p in zip(ledger.scopes.module, ledger.scopes.phase, strict=True) if p == 0
    ]
    assert forward == ["Both", "Linear"] * 2  # the thread's own Linear is of no scope


def fail() -> None:
    torch.ones(3, device="cuda") @ torch.ones(4, device="cuda")


def in_a_thread() -> None:
    thread = threading.Thread(target=fail, name="prefetch")
    thread.start()
    thread.join()


def in_a_thread_of_its_own_kind() -> None:
    class Loader(threading.Thread):
        def run(self) -> None:
            fail()

    loader = Loader(name="prefetch")
    loader.start()
    loader.join()


def in_a_pool() -> None:
    ThreadPoolExecutor(1).submit(fail)


WORK = pytest.mark.parametrize("work", [in_a_thread, in_a_thread_of_its_own_kind, in_a_pool])


@WORK
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_fails_in_a_thread_is_told_and_the_run_goes_on(work: Callable[[], None]):
    def build():
        torch.ones(4, device="cuda")
        return work

    said = memfit.predict(build, steps=1).assumptions
    assert any("ended with RuntimeError" in sentence and "the prediction went on" in sentence for sentence in said)


def refuse() -> None:
    raise NeedsGpuError("what the thread does", "Do without it.")


@WORK
def test_what_is_refused_in_a_thread_fails_the_prediction(work: Callable[[], None], monkeypatch):
    monkeypatch.setitem(globals(), "fail", refuse)

    def build():
        torch.ones(4, device="cuda")
        return work

    with pytest.raises(StepFailedError, match="what the thread does") as caught:
        memfit.predict(build, steps=1)
    assert "pool" in caught.value.what or "prefetch" in caught.value.what


def test_an_error_that_the_script_reads_is_its_own_matter():
    def build():
        torch.ones(4, device="cuda")
        pool = ThreadPoolExecutor(1)
        return lambda: pool.submit(fail).exception()

    assert memfit.predict(build, steps=1).fits


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_log_server_that_does_not_answer_is_told_and_ends_nothing():
    def log() -> None:
        raise ConnectionError("nobody there")

    def build():
        torch.ones(4, device="cuda")

        def step():
            thread = threading.Thread(target=log, name="logger")
            thread.start()
            thread.join()

        return step

    assert any("the thread logger ended with ConnectionError" in said for said in memfit.predict(build, steps=1).assumptions)


def test_a_thread_from_before_is_refused_by_name():
    asked, answered = threading.Event(), threading.Event()
    shared: list[torch.Tensor] = []
    problems: list[BaseException] = []

    def work() -> None:
        asked.wait()
        for attempt in (lambda: shared[0] + 1, lambda: torch.ones(3).to("cuda"), lambda: torch.empty(3, device="cuda")):
            try:
                attempt()
            except RuntimeError as problem:
                problems.append(problem)
        answered.set()

    thread = threading.Thread(target=work, name="older")
    thread.start()

    def build():
        shared.append(torch.ones(4, device="cuda"))

        def step():
            asked.set()
            answered.wait()

        return step

    with pytest.raises(StepFailedError, match="the thread older was there before the prediction began"):
        memfit.predict(build, steps=1)
    thread.join()
    assert [type(problem) for problem in problems] == [OutsiderError] * 3


def test_a_pool_from_before_can_be_given_work_and_is_as_before_afterwards():
    pool = ThreadPoolExecutor(1)
    assert pool.submit(modes_of_this_thread).result() == []

    def build():
        kept = []
        return lambda: kept.append(pool.submit(lambda: torch.ones(2**20, device="cuda")).result())

    assert memfit.predict(build, steps=1).peak_allocated == 4 * 2**20
    assert pool.submit(modes_of_this_thread).result() == []
    assert pool.submit(lambda: torch.randn(2**20)).result().device.type == "cpu"
    assert type(pool.submit(lambda: torch.randn(2**20)).result()) is torch.Tensor
    pool.shutdown()


def test_a_thread_that_outlives_the_world_does_no_more_there():
    flags = {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in")}
    over, found = threading.Event(), []

    def work() -> None:
        over.wait()
        found.append(type(torch.randn(2**20)))
        torch.ones(3, device="cuda")  # ends the thread, without a word
        found.append("still there")

    with phantom():
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
    over.set()
    thread.join()
    assert found == [torch.Tensor]
    assert active_patches() == []
    assert {name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in")} == flags


def test_weights_are_loaded_in_threads(tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, vocab_size=256
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    num_bytes = sum(-(-p.numel() * 4 // 512) * 512 for p in transformers.LlamaForCausalLM(config).parameters())

    def build():
        model = transformers.LlamaForCausalLM.from_pretrained(tmp_path, device_map="cuda")
        tokens = torch.randint(0, 256, (2, 16), device="cuda")
        return lambda: model(input_ids=tokens, labels=tokens).loss.backward()

    prediction = memfit.predict(build, steps=1)
    assert prediction.breakdown[Category.PARAMETER] == num_bytes
