"""Classes of tensors and parameters that libraries make for themselves."""

from __future__ import annotations

import copy

import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit


class Packed(nn.Parameter):
    """As bitsandbytes' parameters are: it is made of another tensor when it comes to the GPU, and has notes of its own."""

    def __new__(cls, data=None, requires_grad=False, scale=None):
        self = torch.Tensor._make_subclass(cls, data, requires_grad)
        self.scale = scale
        return self

    def cuda(self, device=None, non_blocking=False):
        return self.to("cuda")

    def to(self, *args, **kwargs):
        if self.scale is not None:
            return Packed(super().to(*args, **kwargs), scale=self.scale)
        whole = self.data.to("cuda")
        self.scale = whole.float().abs().max()
        self.data = whole.flatten().to(torch.int8)[::2].contiguous()
        return self


class Named(torch.Tensor):
    """A tensor whose results are of its class too, which is what torch does by itself."""


def test_a_parameter_of_a_class_of_its_own_is_that_on_the_phantom_gpu():
    with phantom():
        param = Packed(torch.randn(8, 4))
        assert isinstance(param, Packed)
        assert isinstance(param, nn.Parameter)
        module = nn.Module()
        module.weight = param
        module.cuda()
        assert module.weight is param
        assert isinstance(module.weight, Packed)
        assert module.weight.is_cuda
        assert (module.weight.shape, module.weight.dtype) == ((16,), torch.int8)
        assert module.weight.scale.is_cuda
        module.to("cuda")  # a second one, made by its own method
        assert isinstance(module.weight, Packed)
        assert module.weight.scale is not None


def test_a_plain_subclass_keeps_its_class_and_what_is_written_on_it_when_it_is_moved_and_copied():
    class Noted(nn.Parameter):
        pass

    with phantom():
        layer = nn.Linear(4, 4, bias=False)
        layer.weight = Noted(torch.randn(4, 4))
        layer.weight.note = "mine"
        layer.to(device="cuda", dtype=torch.bfloat16)
        assert isinstance(layer.weight, Noted)
        assert layer.weight.note == "mine"
        assert (layer.weight.dtype, layer.weight.device.type) == (torch.bfloat16, "cuda")
        assert isinstance(copy.deepcopy(layer).weight, Noted)
        layer(torch.ones(2, 4, device="cuda", dtype=torch.bfloat16)).sum().backward()
        assert layer.weight.grad.shape == (4, 4)


def test_operators_on_such_tensors_alone_give_plain_ones():
    with phantom():
        param = Packed(torch.randn(8, 4)).cuda()
        assert type(param + param) is type(torch.ones(1, device="cuda"))
        assert param.add_(1) is param
        assert isinstance(param, Packed)


def test_as_subclass():
    with phantom():
        named = torch.ones(4, device="cuda").as_subclass(Named)
        assert isinstance(named, Named)
        assert isinstance(named * 2, Named)
        assert not isinstance(named.as_subclass(torch.Tensor), Named)
        assert isinstance(torch.ones(4).as_subclass(Named).cuda(), Named)  # the host's are real


def test_what_it_was_made_of_is_freed():
    def build():
        module = nn.Module()
        module.weight = Packed(torch.randn(1024, 1024))
        module.cuda()
        scale = nn.Parameter(torch.ones(1, device="cuda"))
        optimizer = torch.optim.SGD([scale])

        def step():
            (scale * module.weight.float()).sum().backward()
            optimizer.step()

        return step

    prediction = memfit.predict(build, gpu="H200", steps=1)
    assert 2**19 <= prediction.steps[0].end_allocated <= 2**19 + 4096


def test_nothing_of_it_is_left_outside():
    with phantom():
        Packed(torch.randn(2, 2))
    assert type(Packed(torch.randn(2, 2))) is Packed
    assert type(torch.ones(2).as_subclass(Named)) is Named


def test_modules_that_learn_their_widths_from_the_first_batch_have_plain_parameters_afterwards():
    with phantom():
        net = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.Linear(8, 2)).cuda()
        weight = net[0].weight
        assert nn.parameter.is_lazy(weight)
        net(torch.randn(4, 5, device="cuda")).sum().backward()
        assert net[0].weight is weight
        assert type(weight) is nn.Parameter
        assert (type(net[0]), tuple(weight.shape), weight.is_cuda) == (nn.Linear, (8, 5), True)
        assert net[1].running_mean.shape == (8,)
        assert weight.grad.shape == (8, 5)


def test_parameters_without_a_shape_take_the_type_that_they_are_cast_to():
    with phantom():
        layer = nn.LazyLinear(8, device="cuda").bfloat16()
        layer(torch.randn(4, 5, device="cuda", dtype=torch.bfloat16))
        assert (layer.weight.dtype, layer.weight.requires_grad) == (torch.bfloat16, True)


def test_memory_of_lazy_modules_is_that_of_plain_ones():
    def step_of(layer):
        def step():
            layer(torch.randn(64, 1024, device="cuda")).sum().backward()

        return step

    lazy = memfit.predict(lambda: step_of(nn.LazyLinear(2048).cuda()), steps=2)
    plain = memfit.predict(lambda: step_of(nn.Linear(1024, 2048).cuda()), steps=2)
    assert lazy.peak_allocated == plain.peak_allocated > 2 * 2048 * 1024 * 4
