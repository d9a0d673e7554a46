"""Operators that fake tensors cannot answer: the user's expectation, a kernel for the host, and a refusal at last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers.phantom_worlds import phantom

from memfit.errors import ConfigError, NeedsGpuError
from memfit.phantom.values.assumptions import Expected


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[None]:
    made = torch.library.Library("of_others", "DEF")
    made.define("find(Tensor x) -> Tensor")
    made.define("parts(Tensor x, Tensor at) -> (Tensor, Tensor)")
    made.define("double_(Tensor(a!) x) -> Tensor(a!)")
    made.define("secret(Tensor x) -> Tensor")
    made.impl("parts", lambda x, at: (x[: int(at.sum())].clone(), x.sum(0).long()), "CPU")
    made.impl("double_", lambda x: x.mul_(2), "CPU")

    def find(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty((torch.library.get_ctx().new_dynamic_size(), 2))

    torch.library.register_fake("of_others::find", find, lib=made)
    yield
    made._destroy()


@pytest.mark.parametrize(("expected", "num_found"), [({}, 100), ({"of_others::find": 7}, 7), ({"of_others::find": 0.5}, 50)])
def test_a_size_that_data_decide_is_what_the_user_expects(expected: dict[str, float], num_found: int):
    with phantom(expected=expected) as world:
        assert torch.ops.of_others.find(torch.ones(100, 8, device="cuda")).shape == (num_found, 2)
    assert any("what of_others::find finds" in said for said in world.assumptions.sentences())


def test_a_kernel_for_the_host_says_what_comes_back_and_draws_nothing():
    with phantom() as world:
        before = torch.get_rng_state()
        x, at = torch.ones(100, 8, device="cuda"), torch.tensor([2, 3]).cuda()  # what is known is not made up
        some, sums = torch.ops.of_others.parts(x, at)
        assert (some.shape, sums.shape, sums.dtype, sums.is_cuda) == ((5, 8), (8,), torch.int64, True)
        assert torch.ops.of_others.double_(x) is x
        assert torch._sample_dirichlet(x).is_cuda
        assert torch.equal(before, torch.get_rng_state())
        torch.set_default_device("cuda")
        assert torch.tensor([1]).is_cuda  # C++ would ask for a guard of CUDA's, after an operator that fake tensors refuse
    assert any("aten::_sample_dirichlet has a compiled kernel" in said for said in world.assumptions.sentences())


def test_what_nobody_can_tell_is_refused():
    with phantom(), pytest.raises(NeedsGpuError, match="of_others::secret"):
        torch.ops.of_others.secret(torch.ones(4, device="cuda"))
    with pytest.raises(ConfigError, match="vision::nms"):
        Expected({"of others": 3})
