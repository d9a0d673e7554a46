"""Answers from memory are the answers that torch gives."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from helpers.tiny_models import TINY
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

import memfit
from memfit.models import MODELS
from memfit.phantom.tensors import dispatch_cache
from memfit.phantom.tensors.tensor_annotations import PREFIX
from memfit.torch_compat.fake_tensors import FakeTensor


class CheckedCache(dispatch_cache.DispatchCache):
    """Compares every answer from memory with torch's."""

    num_compared = 0
    names: ClassVar[set[str]] = set()

    def answer(self, ask, func, types, args, kwargs):
        asked = []

        def ask_and_count(*question):
            asked.append(question)
            return ask(*question)

        result = super().answer(ask_and_count, func, types, args, kwargs)
        if not asked and func.namespace != "c10d":  # those are asked about in another way, and change what they are given
            CheckedCache.num_compared += 1
            CheckedCache.names.add(func.name())
            truth = ask(func, types, args, kwargs)
            assert described(result, args) == described(truth, args), func
        return result


def described(result, args):
    if isinstance(result, (tuple, list)):
        return type(result), [described(item, args) for item in result]
    if not isinstance(result, torch.Tensor):
        return result
    shared = [i for i, arg in enumerate(args) if shares(arg, result)]
    same = [i for i, arg in enumerate(args) if arg is result]
    words = (
        {name: value for name, value in vars(result).items() if not name.startswith(PREFIX) and name != "fake_mode"}
        if not same
        else {}
    )
    nbytes = result.untyped_storage().nbytes()
    return result.shape, result.stride(), result.dtype, result.device, result.storage_offset(), shared, same, nbytes, words


def shares(argument, result) -> bool:
    return isinstance(argument, FakeTensor) and argument.untyped_storage()._cdata == result.untyped_storage()._cdata


class Everything(nn.Module):
    """Views, in-place changes, several outputs, lists, broadcasting, mixed types."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.Linear(8, 24)
        self.gain = nn.Parameter(torch.ones(1, 8))

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        x = x.flatten(2).transpose(1, 2)
        q, k, v = self.attention(x).chunk(3, dim=-1)
        x = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None]).squeeze(1)
        x = torch.cat([x, x * self.gain, x.to(torch.float64).float()], dim=-1)
        x = x.permute(0, 2, 1)[..., ::2].contiguous().expand(2, *x.shape[:1], -1, -1)
        values, _ = x.topk(3, dim=-1)
        return (values.masked_fill(values > 0.5, 0) + torch.arange(3, device=x.device)).mul_(2).add(1.0).sum()


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> type[CheckedCache]:
    monkeypatch.setattr("memfit.phantom.tensors.mode.DispatchCache", CheckedCache)
    CheckedCache.num_compared = 0
    CheckedCache.names.clear()
    return CheckedCache


def build():
    model = Everything().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(4, 3, 8, 8, device="cuda")

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(images)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_memory_and_torch_agree(checked: type[CheckedCache]):
    memfit.predict(build, steps=4)
    assert checked.num_compared > 100


def test_the_check_can_fail(checked: type[CheckedCache], monkeypatch: pytest.MonkeyPatch):
    make = dispatch_cache._make
    monkeypatch.setattr(
        dispatch_cache,
        "_make",
        lambda recipe, args: make(recipe, args)[..., :0] if isinstance(recipe, dispatch_cache._New) else None,
    )
    with pytest.raises(memfit.errors.StepFailedError):
        memfit.predict(build, steps=4)


def test_memory_changes_no_ledger(monkeypatch: pytest.MonkeyPatch):
    with_memory = memfit.predict(build, steps=4).ledger
    monkeypatch.setattr(dispatch_cache.DispatchCache, "answer", lambda self, ask, *question: ask(*question))
    without = memfit.predict(build, steps=4).ledger
    assert with_memory.events.kind.tolist() == without.events.kind.tolist()
    assert with_memory.events.subject.tolist() == without.events.subject.tolist()
    assert with_memory.events.size.tolist() == without.events.size.tolist()


@pytest.mark.parametrize("values", [(1, 1.0), (1, True), (0, False), ("a", b"a")])
def test_numbers_that_are_equal_but_not_alike_are_different_questions(values):
    x = torch.ones(2)
    first, second = ([*_parts(func="op", args=(x.shape, value))] for value in values)
    assert first != second


def _parts(func, args):
    parts: list = [func]
    for value in args:
        try:
            dispatch_cache._describe_one(value, parts)
        except dispatch_cache._Unknown:
            parts.append("unknown")
    return parts


def build_split():
    dist.init_process_group("nccl")
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    mesh = init_device_mesh("cuda", (2,))
    plan = {"0": ColwiseParallel(input_layouts=Shard(0)), "2": RowwiseParallel(output_layouts=Shard(0))}
    net = parallelize_module(net, mesh, plan).to_empty(device="cuda")
    x = torch.randn(4, 8, device="cuda")

    def step():
        net(x).sum().backward()

    return step


def test_collectives_are_remembered_as_torch_answers_them(checked: type[CheckedCache]):
    memfit.predict(build_split, steps=2, world_size=2)
    assert {"_c10d_functional::all_gather_into_tensor", "_c10d_functional::wait_tensor"} <= checked.names


def test_what_torch_forgets_is_remembered_as_it_answers(checked: type[CheckedCache], monkeypatch: pytest.MonkeyPatch):
    """FSDP2's copies, the attention and the rotation of context parallelism, what is made of other operators, lists of tensors."""
    monkeypatch.setitem(MODELS, TINY.name, TINY)
    memfit.predict(model="tiny", seq=64, cp=2, microbatches=2, batch=2, gpu="H100-80GB", world_size=4, steps=2)
    assert checked.names >= dispatch_cache._BY_DESCRIPTION
    assert any(name.startswith(dispatch_cache._WITH_LISTS) for name in checked.names)


def test_what_is_known_of_values_is_not_lost():
    """A cast that is made of others, below autograd: the second is asked about again, because its values are known."""
    found = []

    def build():
        def step():
            with torch.inference_mode():
                for tensor in (torch.empty(4, dtype=torch.int32, device="cuda"), torch.arange(4, dtype=torch.int32, device="cuda")):
                    for _ in range(2):
                        wide = torch.ops.aten.to.dtype(tensor, torch.int64)
            found.append(wide.tolist())

        return step

    memfit.predict(build, steps=2)
    assert found == [[0, 1, 2, 3]] * 2


def test_two_outputs_in_one_new_storage_are_not_remembered():
    """Each would get a storage of its own."""

    def build():
        def step():
            whole = torch.empty(4, device="cuda")
            assert dispatch_cache._write_down((), [whole[:2], whole[2:]]) is None
            kind, recipes = dispatch_cache._write_down((whole,), [whole[:2], whole[2:]])
            assert (kind, [recipe.view_of for recipe in recipes]) == (list, [0, 0])
            assert dispatch_cache._write_down((), (whole, 7, None))[1][1:] == (dispatch_cache._Number(7), None)

        return step

    memfit.predict(build, steps=1)


def sources(length):
    yield torch.arange(2 * length).view(2, length)
    yield torch.randn(2, length)
    yield torch.randn(length, 2).t()
    yield torch.randn(1, length)[:, ::2]
    yield torch.zeros(2, 0)
    yield torch.randn(2, 3, length, length).to(memory_format=torch.channels_last)
    yield torch.randn(4, 1).expand(4, length)
    yield torch.randn(length, dtype=torch.complex64)
    yield torch.tensor(float(length))


def test_copies_of_any_length_are_those_that_torch_makes(monkeypatch: pytest.MonkeyPatch):
    told = []
    copy = dispatch_cache.DispatchCache.copy
    monkeypatch.setattr(
        dispatch_cache.DispatchCache, "copy", lambda self, *question: told.append(copy(self, *question)) or told[-1]
    )

    def copies():
        made = []

        def step():
            for length in (3, 5, 8, 3):
                for source in sources(length):
                    there = source.cuda()
                    forms = (
                        there,
                        there.to(torch.float64),
                        there.to(torch.bfloat16, memory_format=torch.contiguous_format),
                        there.cpu(),
                    )
                    made.extend((described(form, ()), form.tolist() if source.dtype is torch.int64 else None) for form in forms)

        found.append(made)
        return step

    found = []
    memfit.predict(copies, steps=1)
    assert sum(each is not None for each in told) > 20
    monkeypatch.setattr(dispatch_cache.DispatchCache, "copy", lambda self, *question: None)
    memfit.predict(copies, steps=1)
    assert found[0] == found[1]
