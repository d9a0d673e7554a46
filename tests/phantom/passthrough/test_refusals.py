"""What cannot be had without a GPU: an error that names it and says what to do."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.errors import NeedsGpuError, StepFailedError


def gpu_tensor() -> torch.Tensor:
    return torch.ones(3, device="cuda")


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda: gpu_tensor().__cuda_array_interface__, "__cuda_array_interface__"),
        (lambda: gpu_tensor().__dlpack__(), "DLPack"),
        (lambda: torch.utils.dlpack.to_dlpack(gpu_tensor()), "DLPack"),
        (lambda: np.from_dlpack(gpu_tensor()), "DLPack"),
        (lambda: ForkingPickler.dumps(gpu_tensor()), "another process"),
        (lambda: torch.cuda.current_blas_handle(), "current_blas_handle"),
        (lambda: torch.cuda.cudart().cudaMalloc(4), "cudaMalloc"),
        (lambda: torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }"), "jiterator"),
    ],
)
def test_it_is_named_and_advice_is_given(ask, named: str):
    with phantom(), pytest.raises(NeedsGpuError, match=named) as raised:
        ask()
    assert raised.value.advice in str(raised.value)
    assert raised.value.advice.endswith(".")


def test_numpy_wants_a_tensor_of_the_host():
    with phantom():
        with pytest.raises(TypeError, match=r"\.cpu\(\)"):
            gpu_tensor().numpy()
        with pytest.raises(TypeError, match=r"\.cpu\(\)"):
            np.asarray(gpu_tensor())
        assert gpu_tensor().cpu().numpy().tolist() == [1.0] * 3
        assert np.from_dlpack(torch.zeros(2**20).cpu()).shape == (2**20,)  # too large to be real, and of the host


def test_an_operator_for_cuda_alone_needs_a_shape_function():
    library = torch.library.Library("memfit_test", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", lambda x: x * 2, "CUDA")
    with phantom():
        with pytest.raises(NeedsGpuError, match=r'register_fake\("memfit_test::double"\)'):
            torch.ops.memfit_test.double(gpu_tensor())
        torch.library.register_fake("memfit_test::double", lambda x: torch.empty_like(x), lib=library)
        assert torch.ops.memfit_test.double(gpu_tensor()).is_cuda


def test_a_custom_operator_with_a_shape_function_runs_and_one_without_is_named():
    @torch.library.custom_op("memfit_test::launch", mutates_args=(), device_types="cuda")
    def launch(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("there is nothing to launch it on")

    with phantom():
        with pytest.raises(NeedsGpuError, match="memfit_test::launch"):
            launch(gpu_tensor())
        launch.register_fake(torch.empty_like)
        assert launch(gpu_tensor()).shape == (3,)


def test_the_advice_comes_last_in_what_the_user_reads():
    def build():
        return lambda: torch.utils.dlpack.to_dlpack(gpu_tensor())

    with pytest.raises(StepFailedError) as raised:
        memfit.predict(build, steps=1)
    assert str(raised.value).rstrip().endswith("or do the work in PyTorch.")
    assert "please report" not in str(raised.value)


@pytest.mark.parametrize("where", ["hook", "post_hook", "recomputation"])
def test_what_a_backward_pass_raises_reaches_the_user(where: str):
    """Torch would abort the process: it asks Python for the device while the error is pending."""
    from torch.utils.checkpoint import checkpoint

    def fail(*args):
        raise ValueError("mine")

    calls = []

    def forward(x):
        calls.append(x)
        if where == "recomputation" and len(calls) > 1:
            fail()
        return x.sin()

    with phantom():
        weight = nn.Parameter(torch.ones(3, device="cuda"))
        if where == "hook":
            weight.register_hook(fail)
        if where == "post_hook":
            weight.register_post_accumulate_grad_hook(fail)
        loss = checkpoint(forward, weight, use_reentrant=False).sum()
        with pytest.raises(ValueError, match="mine"):
            loss.backward()


def test_pointers_tell_tensors_apart_and_are_no_addresses():
    with phantom():
        x, y = torch.ones(1000, device="cuda"), torch.ones(1000, device="cuda")
        assert x.data_ptr() == x.view(10, 100).data_ptr() == x.untyped_storage().data_ptr()
        assert x[1:].data_ptr() == x.data_ptr() + 4
        assert abs(x.data_ptr() - y.data_ptr()) >= 4000
        assert x.data_ptr() % 512 == 0
        assert x.data_ptr() >= 2**60  # beyond what any machine maps
        assert torch.empty(0, device="cuda").data_ptr() == 0
