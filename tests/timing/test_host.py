"""What the host spends: by kinds of operators, in forward and in backward, and what was measured of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memfit.hardware import find_gpu
from memfit.timing.basis import rates_of
from memfit.timing.host import HostPace
from memfit.timing.operators.calls import Call
from memfit.timing.operators.prices import MAY_LOOK, price
from memfit.timing.rates import MICRO

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
H200, A100 = find_gpu("H200"), find_gpu("A100-80GB")
RATES = rates_of(H200).host
PACE = HostPace(RATES)


def microseconds(text: str, in_backward: bool = False) -> float:
    call = Call.parse(text)
    return PACE.operator(call, price(call, H200), in_backward) / MICRO


def measured(part: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TRUTH / "host_times.json").read_text())[part]
    return found


def test_a_step_of_many_kinds_is_slower_than_loops_over_each_by_as_much_as_was_measured() -> None:
    alone, left_out = measured("operators"), ("index_add", "where", "masked_fill", "attention with a mask")
    names = [name.removesuffix(": forward and backward") for name in alone if name.endswith(": forward and backward")]
    names = [name for name in names if name not in left_out]
    forward = sum(alone[f"{name}: forward with grad"] for name in names)
    backward = sum(alone[f"{name}: forward and backward"] for name in names) - forward
    in_turn = measured("mixed")
    assert in_turn["all operators in turn: forward"] / forward == pytest.approx(RATES.in_forward, rel=0.05)
    of_backward = in_turn["all operators in turn: both"] - in_turn["all operators in turn: forward"]
    assert of_backward / backward == pytest.approx(RATES.in_backward, rel=0.12)


def test_a_number_of_the_host_is_cheap_and_one_of_the_gpu_is_not() -> None:
    assert microseconds("_local_scalar_dense h:f32[] > 1.0") < 1.0
    assert microseconds("_local_scalar_dense f32[] > 1.0") > 9.0


@pytest.mark.parametrize("count", [10, 150, 300])
def test_lists_of_an_optimizer_add_up_to_its_step(count: int) -> None:
    """AdamW: nine operators on lists, one of them on the host, and two numbers of the host for each parameter."""
    known = json.loads((TRUTH / "operator_times.json").read_text())["host"]
    spent = 8 * microseconds(f"_foreach_mul_.Scalar ({count}*f32[32,32]) 0.9 > ")
    spent += microseconds(f"_foreach_add_.Tensor ({count}*h:f32[]) h:f32[] > ")
    spent += 2 * count * microseconds("_local_scalar_dense h:f32[] > 1.0")
    assert spent == pytest.approx(known[f"optimizer adamw, {count} parameters"], rel=0.2)


def test_a_list_on_the_host_is_an_operator_for_each_of_its_tensors() -> None:
    one, many = (microseconds(f"_foreach_add_.Scalar ({count}*h:f32[32]) 1 > ") for count in (1, 101))
    assert many - one == pytest.approx(120.0)


def test_a_convolution_pays_for_its_bias_and_for_turning_half_types() -> None:
    sizes = "{0}[2,32,16,16] {0}[32,32,3,3] {1} (1;1) (1;1) (1;1) F (0;0) 1 > {0}[2,32,16,16]"
    plain, biased, half = (
        microseconds("convolution " + sizes.format(*parts)) for parts in (("f32", "-"), ("f32", "f32[32]"), ("bf16", "-"))
    )
    assert plain < biased < half
    by_channel = "convolution f32[2,32,16,16] f32[32,1,3,3] - (1;1) (1;1) (1;1) F (0;0) 32 > f32[2,32,16,16]"
    assert microseconds(by_channel) < biased


GROUPED = "_grouped_mm {0}[4096,768] {0}[8,768,2048] i32[8] > {0}[4096,2048]"


@pytest.mark.parametrize(("dtype", "chip", "num_kernels"), [("f32", H200, 8), ("bf16", H200, 1), ("bf16", A100, 8)])
def test_groups_are_products_of_their_own_where_no_kernel_takes_all(dtype: str, chip: Any, num_kernels: int) -> None:
    call = Call.parse(GROUPED.format(dtype))
    cost = price(call, chip)
    assert (cost.num_kernels, cost.looks_first) == (num_kernels, num_kernels > 1)
    assert cost.flops == 2.0 * 4096 * 768 * 2048
    assert cost.seconds >= cost.flops / chip.product_flops(dtype)


def test_the_host_pays_for_each_product_of_a_group() -> None:
    assert microseconds(GROUPED.format("f32")) > 5 * microseconds(GROUPED.format("bf16"))


LOOKING = {
    "index.Tensor f32[64,64] (bool[64]) > f32[32,64]": True,
    "index.Tensor f32[64,64] (i64[32]) > f32[32,64]": False,
    "index_put_ f32[64,64] (bool[64,64]) f32[] > f32[64,64]": True,
    "_ctc_loss.Tensor f32[149,4,32] i64[4,30] i64[4] i64[4] > f32[4] f32[4,149,61]": True,
    "_ctc_loss f32[149,4,32] i64[4,30] (4*149) (4*30) > f32[4] f32[4,149,61]": False,
    "_ctc_loss.Tensor f32[149,4,32] i64[4,30] h:i64[4] h:i64[4] > f32[4] f32[4,149,61]": False,
    "bincount i64[64] > i64[8]": True,
    "mul.Tensor f32[64] bool[64] > f32[64]": False,
}


@pytest.mark.parametrize(("text", "looks"), LOOKING.items())
def test_who_looks_at_numbers_before_anything_is_issued(text: str, looks: bool) -> None:
    call = Call.parse(text)
    assert price(call, H200).looks_first == looks
    assert not looks or call.name in MAY_LOOK


@pytest.mark.parametrize(
    ("text", "seconds"),
    {
        "native_layer_norm f32[100352,96] (96) f32[96] f32[96] 1e-05 > f32[100352,96] f32[100352,1] f32[100352,1]": 159e-6,
        "native_layer_norm f32[25088,192] (192) f32[192] f32[192] 1e-05 > f32[25088,192] f32[25088,1] f32[25088,1]": 44e-6,
        "native_layer_norm f32[4,1500,512]@768000,1,1500 (512) f32[512] f32[512] 1e-05 "
        "> f32[4,1500,512] f32[4,1500,1] f32[4,1500,1]": 37e-6,
        "native_layer_norm_backward f32[50176,96] f32[50176,96] (96) f32[50176,1] f32[50176,1] f32[96] f32[96] (3*T) "
        "> f32[50176,96] f32[96] f32[96]": 232e-6,
        "_weight_norm_interface f32[768,48,128] f32[1,1,128] 2 > f32[768,48,128] f32[1,1,128]": 334e-6,
    }.items(),
)
def test_short_rows_cost_what_they_took(text: str, seconds: float) -> None:
    assert price(Call.parse(text), H200).seconds == pytest.approx(seconds, rel=0.15)


def test_an_operator_that_autograd_does_not_note_down_is_cheaper() -> None:
    call = Call.parse("mul.Tensor f32[64,64] f32[64,64] > f32[64,64]")
    cost = price(call, H200)
    assert PACE.operator(call, cost, False, is_recorded=False) < 0.7 * PACE.operator(call, cost, False)
