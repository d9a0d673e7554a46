"""``RuntimeEstimator``: PyTorch's surface, and none of the faults that its own has.

A fault is shown on PyTorch's own beside what ours says. Its prices ask CUDA which GPU there is, so tests answer for an H100.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from helpers.feed_forward import Block
from helpers.prepared_process import run_prepared
from torch import nn
from torch._inductor.analysis.device_info import lookup_device_info
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.runtime_estimator import RuntimeEstimator as TorchRuntimeEstimator
from torch.utils import _runtime_estimation

from memfit.compat import RuntimeEstimator
from memfit.hardware import find_gpu

FIXED = f"fixed in torch {torch.__version__}"
MODES = ("operator-level-benchmark", "operator-level-cost-model")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(Block(), Block())

    def forward(self, x: torch.Tensor) -> Any:
        return self.layers(x)


def estimated(mode: str = MODES[1], gpu: str = "H200") -> RuntimeEstimator:
    estimator = RuntimeEstimator(gpu=gpu)
    with FakeTensorMode():
        model, x = Net(), torch.randn(4096, 512)
        with estimator(mode):
            model(x).sum().backward()
    return estimator


@pytest.mark.parametrize("mode", MODES)
def test_modules_have_milliseconds_of_forward_and_backward_without_a_gpu(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = estimated(mode)
    assert mode in capsys.readouterr().out
    net, block = found.mod_runtimes["Net"], found.mod_runtimes["Net.layers.0"]
    assert 0 < block["fw"] < net["fw"]
    assert 1.5 * net["fw"] < net["bw"] < 4 * net["fw"]
    assert net["fw"] + net["bw"] <= found.total_runtime
    assert found.mod_fw_pre_order[:3] == ["Net", "Net.layers", "Net.layers.0"]
    assert found.mod_fw_post_order[-1] == "Net"
    assert {"Net", "Net.layers.0", "Net.layers.1.up"} <= set(found.mod_bw_pre_order)


def test_other_ways_to_estimate_are_not_known() -> None:
    with pytest.raises(NotImplementedError, match="module-level"):
        RuntimeEstimator()("module-level")


def test_entering_again_begins_anew(capsys: pytest.CaptureFixture[str]) -> None:
    estimator = RuntimeEstimator()
    totals = []
    for _ in range(2):
        with FakeTensorMode():
            model, x = Net(), torch.randn(64, 512)
            with estimator(MODES[0]):
                model(x)
        totals.append(estimator.total_runtime)
    assert totals[0] == totals[1]
    estimator.display_modulewise_stats(depth=2)
    assert "Net.layers fw:" in capsys.readouterr().out


WITHOUT_CUDA = """
import os, resource, sys
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.runtime_estimator import RuntimeEstimator

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for mode in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        with FakeTensorMode():
            model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
            with RuntimeEstimator()(mode):
                model(x)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_without_cuda_pytorchs_aborts_the_process():
    """All other tests here run ours without CUDA."""
    found = run_prepared(WITHOUT_CUDA, *MODES).stdout.split()
    assert found == [str(-signal.SIGABRT)] * 2, FIXED


@pytest.fixture
def on_h100(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch's estimator asks of a GPU is answered as an H100 does."""
    for module in (torch.cuda, torch.accelerator):  # torch 2.15 asks the second
        monkeypatch.setattr(module, "is_available", lambda: True)
    peaks = {torch.bfloat16: 989.0, torch.float32: 67.0}
    bandwidth = "get_device_dram_gbps" if hasattr(_runtime_estimation, "get_device_dram_gbps") else "get_gpu_dram_gbps"
    monkeypatch.setattr(_runtime_estimation, "get_device_tflops", lambda dtype, **device: peaks[dtype])
    monkeypatch.setattr(_runtime_estimation, bandwidth, lambda *device: 3350.0)


def their_milliseconds(func: Any, *args: Any) -> float:
    with FakeTensorMode(allow_non_fake_inputs=True):
        return TorchRuntimeEstimator._roofline_estimate(func, args, {})[1]


def milliseconds(work: Any, gpu: str = "H200") -> float:
    estimator = RuntimeEstimator(gpu=gpu)
    with FakeTensorMode(allow_non_fake_inputs=True), estimator(MODES[1]):
        work()
    return estimator.total_runtime


def test_a_product_is_not_faster_than_the_peak_allows(on_h100: None):
    a = torch.empty(8192, 8192, dtype=torch.bfloat16, device="meta")
    allowed = 1000 * 2 * 8192**3 / find_gpu("H100-80GB").bf16_flops
    assert milliseconds(lambda: a @ a, "H100-80GB") >= allowed
    assert their_milliseconds(torch.ops.aten.mm.default, a, a) < 0.7 * allowed, FIXED


def test_gpus_have_the_names_that_people_write():
    def work() -> None:
        torch.empty(1024, 1024) @ torch.empty(1024, 1024)

    assert milliseconds(work, "NVIDIA H100 80GB HBM3") == milliseconds(work, "H100")
    assert lookup_device_info("NVIDIA H100 80GB HBM3") is None, FIXED
    assert milliseconds(work, "NVIDIA H200") > 0
    assert lookup_device_info("NVIDIA H200") is None, FIXED


def test_attention_in_half_precision_has_a_price(on_h100: None):
    """It returns a float of another type beside its result, which PyTorch's does not expect."""
    query = torch.empty(2, 8, 512, 64, dtype=torch.bfloat16, device="meta")
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default
    assert milliseconds(lambda: operator(query, query, query)) > 0
    with pytest.raises(AssertionError, match="single out dtype"):
        their_milliseconds(operator, query, query, query)


def test_looking_at_a_tensor_costs_nothing(on_h100: None):
    x = torch.empty(4096, 4096, device="meta")

    def work() -> None:
        for _ in range(100):
            _ = x.device, x.shape, x.view(-1), x.t()

    assert milliseconds(work) == 0.0
    assert their_milliseconds(torch.ops.prim.device.default, x) > 0.01, FIXED


def test_the_smallest_kernel_takes_its_time(on_h100: None):
    x = torch.empty(1, device="meta")
    assert milliseconds(lambda: x + x) > 1e-3
    assert their_milliseconds(torch.ops.aten.add.Tensor, x, x) < 1e-4, FIXED


def test_two_roots_of_one_class_have_an_entry_each(on_h100: None):
    with FakeTensorMode():
        first, second, x = Net(), Net(), torch.randn(64, 512)
        ours, theirs = RuntimeEstimator(), TorchRuntimeEstimator()
        with ours(MODES[1]):
            second(first(x))
        with theirs(MODES[1]):
            second(first(x))
    assert ours.mod_runtimes["Net"]["fw"] == ours.mod_runtimes["Net#2"]["fw"] > 0
    assert [name for name in theirs.mod_runtimes if name.startswith("Net") and "." not in name] == ["Net"], FIXED


def test_distributed_tensors_are_priced_by_what_a_rank_has(world: Any):
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def product(placement: Any) -> float:
        estimator = RuntimeEstimator()
        x = DTensor.from_local(torch.ones(1024, 1024), world, [placement], run_check=False)
        with estimator(MODES[1]):
            x @ DTensor.from_local(torch.ones(1024, 1024), world, [Replicate()], run_check=False)
        return estimator.total_runtime

    assert product(Shard(0)) == product(Replicate()), "both ranks multiply as much, however large the whole is"


def test_the_workspaces_of_libraries_are_known():
    estimator = RuntimeEstimator()
    with FakeTensorMode():
        model, x = nn.Linear(64, 64, bias=False), torch.randn(8, 64)
        with estimator(MODES[1]):
            model(x)
        forward = estimator.workspace_bytes
        with estimator(MODES[1]):
            model(x).sum().backward()
    assert forward == 32 * 2**20
    assert estimator.workspace_bytes == 2 * forward, "backward has a thread of its own"
