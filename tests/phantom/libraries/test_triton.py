"""Triton kernels are passed over, with Triton installed and without."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import pytest
import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.phantom.current import NoPredictionError
from memfit.phantom.libraries import triton as ours
from memfit.units import MIB

SOURCE = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
SIZE: tl.constexpr = tl.constexpr(4)

@triton.jit
def helper(x):
    return libdevice.rsqrt(x)

@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit(do_not_specialize=["n"])
def add_kernel(x, y, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + helper(tl.load(y + i)), mask=i < n)

@triton.autotune(
    configs=[triton.Config({"BLOCK": 128}, num_warps=4), triton.Config({"BLOCK": 256}, num_warps=8)],
    key=["n"],
    restore_value=["out"],
)
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))

def add(x, y):
    out = torch.empty_like(x)
    grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)
    add_kernel[grid](x, y, out, x.numel(), BLOCK=triton.next_power_of_2(100))
    return out

def tuned(x, out):
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
"""


without_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is not None, reason="Triton is installed here")


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A module of kernels, on disk: their sources are read."""
    (tmp_path / "memfit_test_kernels.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("memfit_test_kernels", None)


def test_a_launch_takes_nothing_and_is_named_once(script):
    def build():
        import memfit_test_kernels as kernels

        weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
        optimizer = torch.optim.SGD([weight])

        def step():
            x = torch.ones(1024, 1024, device="cuda")
            kernels.add(x, x)
            (weight * 2).sum().backward()
            optimizer.step()

        return step

    prediction = memfit.predict(build, gpu="H200", steps=3)
    named = [sentence for sentence in prediction.assumptions if "add_kernel" in sentence]
    assert named == [f"{ours.PASSED_OVER}: add_kernel"]
    assert not any("helper" in sentence for sentence in prediction.assumptions)
    assert 8 * MIB <= prediction.peak_allocated < 9 * MIB


def test_tuning_takes_its_buffer_once_for_each_key_and_copies_what_it_restores(script):
    def build(sizes):
        import memfit_test_kernels as kernels

        weight = torch.nn.Parameter(torch.ones(16, device="cuda"))
        outs = {size: torch.zeros(size, device="cuda") for size in sizes}

        def step():
            for size in sizes:
                kernels.tuned(torch.zeros(size, device="cuda"), outs[size])
            weight.sum().backward()
            weight.grad = None

        return step

    prediction = memfit.predict(lambda: build((MIB,)), gpu="H200", steps=2)
    first, second = prediction.steps
    assert first.peak_allocated - second.peak_allocated == ours.TUNING_BYTES + 4 * MIB  # beside out, its copy
    assert f"{ours.NOT_TUNED}: tuned_kernel" in prediction.assumptions
    again = memfit.predict(lambda: build((MIB,)), gpu="H200", steps=1)
    assert again.peak_allocated == first.peak_allocated  # every prediction is of a new process


def test_what_a_kernel_may_write_is_known_no_longer(script):
    with phantom() as world:
        import memfit_test_kernels as kernels

        lengths = torch.tensor([3, 5], device="cuda")
        counter = torch.zeros(2, device="cuda")
        kernels.tuned(lengths, counter)
        assert lengths.tolist() == [3, 5]  # read only
        before = len(world.assumptions.sentences())
        counter.sum().item()
        assert len(world.assumptions.sentences()) > before


def test_the_driver_answers_for_the_target(script):
    with phantom(gpu="A100-80GB"):
        import triton

        driver = triton.runtime.driver.active
        assert driver.get_current_target().arch == 80
        assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 108


@without_triton
@pytest.mark.parametrize(("gpu", "has_e4m3"), [("A100-80GB", False), ("H100-80GB", True)])
def test_which_types_of_8_bits_kernels_hold(gpu: str, has_e4m3: bool):
    """Torch 2.13 makes a tuple of the answer, and would never be done with one that has no end."""
    with phantom(gpu=gpu):
        import triton
        from triton.compiler.compiler import make_backend

        types = tuple(make_backend(triton.runtime.driver.active.get_current_target()).parse_options({}).supported_fp8_dtypes)
        assert ("fp8e4nv" in types, "fp8e5" in types) == (has_e4m3, True)
        with pytest.raises(TypeError, match="not installed"):
            tuple(triton.anything)


def test_scratch_memory_is_named():
    with phantom() as world:
        import triton

        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        assert any("triton.set_allocator" in sentence for sentence in world.assumptions.sentences())


def test_operators_made_of_triton_kernels_are_opened(script):
    def build():
        import memfit_test_kernels as kernels

        @torch.library.triton_op("memfit_test_triton::twice", mutates_args={})
        def twice(x: torch.Tensor) -> torch.Tensor:
            between = torch.empty(4 * MIB, dtype=torch.int8, device=x.device)
            out = torch.empty_like(x)
            torch.library.wrap_triton(kernels.add_kernel)[(1,)](x, x, out, x.numel(), BLOCK=64)
            del between
            return out

        twice.register_autograd(lambda ctx, grad: grad * 2)
        weight = torch.nn.Parameter(torch.ones(1024, device="cuda"))
        return lambda: twice(weight).sum().backward()

    prediction = memfit.predict(build, gpu="H200", steps=2)
    assert prediction.peak_allocated >= 4 * MIB
    assert any("add_kernel" in sentence for sentence in prediction.assumptions)


# -- where it is not installed -------------------------------------------------------------------------------------------------


@without_triton
def test_the_stand_in_is_there_inside_the_world_only():
    with phantom():
        assert importlib.util.find_spec("triton") is not None
        assert importlib.metadata.version("triton") == "3.6.0"
        import triton

        assert triton.__version__ == "3.6.0"
    assert importlib.util.find_spec("triton") is None
    assert "triton" not in sys.modules
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("triton")
    with pytest.raises(ModuleNotFoundError):
        import triton


def test_modules_of_another_edition_are_not_there():
    """Inductor of torch 2.14 takes their presence for that edition, installed or not."""
    with phantom():
        import triton.language

        assert triton.language is not None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("triton.language.extra.tlx.inductor.registry")


@without_triton
def test_a_kernel_that_outlives_the_world_refuses(script):
    with phantom():
        import memfit_test_kernels as kernels

        kernels.add(torch.ones(4, device="cuda"), torch.ones(4, device="cuda"))
    with pytest.raises(NoPredictionError, match="not installed"):
        kernels.add(torch.ones(4), torch.ones(4))
    with phantom():  # and works in the next
        kernels.add(torch.ones(4, device="cuda"), torch.ones(4, device="cuda"))


@without_triton
def test_torch_does_not_find_the_stand_in():
    from torch.utils._triton import has_triton_package

    with phantom():
        assert not has_triton_package()


def test_the_installed_triton_is_passed_over_and_put_back(tmp_path, monkeypatch):
    """With as much of Triton as a launch needs, found by the import system like the real one."""
    if importlib.util.find_spec("triton"):
        pytest.skip("the other tests have met the real one")
    package = tmp_path / "triton" / "runtime"
    package.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "jit.py").write_text(
        "class JITFunction:\n"
        "    def __init__(self, fn):\n        self.fn = fn\n"
        "    def __getitem__(self, grid):\n        return lambda *args: self.run(*args, grid=grid, warmup=False)\n"
        "    def run(self, *args, **kwargs):\n        return 'launched'\n"
    )
    (package / "driver.py").write_text("class Config:\n    active = 'none'\ndriver = Config()\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    def my_kernel(x): ...

    try:
        with phantom() as world:
            from triton.runtime import driver
            from triton.runtime.jit import JITFunction

            JITFunction(my_kernel)[(1,)](torch.ones(3, device="cuda"))
            assert f"{ours.PASSED_OVER}: my_kernel" in world.assumptions.sentences()
            assert driver.driver.active.get_current_target().backend == "cuda"
        assert JITFunction(my_kernel)[(1,)](0) == "launched"
        assert driver.driver.active == "none"
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
            del sys.modules[name]


def test_a_library_may_give_a_kernel_another_source():
    kernel = ours.JITFunction(lambda x: None)
    kernel._unsafe_update_src("def kernel(x): pass")
    assert kernel.src == "def kernel(x): pass"
