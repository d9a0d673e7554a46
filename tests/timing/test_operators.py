"""Prices against physics, and against what an H200 did."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.hardware import Gpu, find_gpu, gpus
from memfit.timing.operators.calls import Bound, Call, Operand
from memfit.timing.operators.prices import KernelSettings, least_seconds, price

H200 = find_gpu("H200")
TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth" / "operator_times.json"
SIZES = st.one_of(st.integers(1, 5000), st.sampled_from((8192, 14336, 32000, 50257, 128256)))
TYPES = st.sampled_from(("f32", "bf16", "f16", "f64"))
ANY_CHIP = st.sampled_from(gpus())


@given(SIZES, SIZES, SIZES, TYPES, ANY_CHIP, st.booleans())
def test_no_product_is_faster_than_physics(m: int, n: int, k: int, dtype: str, chip: Gpu, tf32: bool) -> None:
    call = Call("mm", (Operand(dtype, (m, k)), Operand(dtype, (k, n))), (Operand(dtype, (m, n)),))
    settings = KernelSettings(allow_tf32=tf32)
    cost = price(call, chip, settings)
    peak = chip.tf32_flops if dtype == "f32" and tf32 else chip.product_flops(dtype)
    assert cost.flops == 2 * m * n * k
    assert cost.seconds >= max(2 * m * n * k / peak, least_seconds(call, chip, settings))


@given(
    st.sampled_from((1, 2, 8)),
    st.sampled_from((1, 4, 16)),
    st.integers(1, 9000),
    st.sampled_from((32, 64, 96, 128, 256)),
    ANY_CHIP,
    st.booleans(),
    st.sampled_from(("flash", "efficient", "cudnn")),
)
def test_no_attention_is_faster_than_physics(
    batch: int, heads: int, length: int, width: int, chip: Gpu, causal: bool, kernel: str
) -> None:
    tensor = Operand("bf16", (batch, heads, length, width))
    arguments: tuple[object, ...] = (0.0, causal) if kernel == "flash" else (None, True, 0.0, causal)
    call = Call(f"_scaled_dot_product_{kernel}_attention", (tensor, tensor, tensor, *arguments), (tensor,))  # type: ignore[arg-type]
    cost = price(call, chip)
    assert cost.flops == pytest.approx(4 * batch * heads * length**2 * width / (2 if causal else 1))
    assert cost.seconds >= cost.flops / chip.bf16_flops


@given(
    st.sampled_from(
        ("add.Tensor", "mul.Tensor", "gelu", "_to_copy", "clone", "sum", "_softmax", "native_layer_norm", "cat", "zeros_like")
    ),
    SIZES,
    SIZES,
    TYPES,
    ANY_CHIP,
)
def test_no_byte_is_written_faster_than_memory_takes_it(name: str, rows: int, columns: int, dtype: str, chip: Gpu) -> None:
    tensor = Operand(dtype, (rows, columns))
    call = Call(name, (tensor,), (tensor,))
    assert price(call, chip).seconds >= least_seconds(call, chip)
    assert price(call, chip).seconds >= tensor.size_bytes / chip.memory_bandwidth


@given(SIZES, SIZES, TYPES)
def test_a_copy_to_the_host_is_not_faster_than_the_link(rows: int, columns: int, dtype: str) -> None:
    here, there = Operand(dtype, (rows, columns)), Operand(dtype, (rows, columns), device_kind="p")
    cost = price(Call("copy_", (there, here, True), (there,)), H200)
    assert cost.bound is Bound.LINK
    assert cost.seconds >= here.size_bytes / H200.host_bandwidth


def test_what_launches_no_kernel_costs_the_gpu_nothing() -> None:
    tensor = Operand("f32", (1024, 1024))
    for name in ("empty", "_unsafe_view", "detach", "empty_strided"):
        assert price(Call(name, (tensor,), (tensor,)), H200).seconds == 0.0


def test_rows_of_odd_length_are_slow() -> None:
    """cuBLAS's fast kernels want rows that begin at multiples of 16 bytes."""

    def seconds(n: int) -> float:
        call = Call("mm", (Operand("bf16", (4096, 1024)), Operand("bf16", (1024, n))), (Operand("bf16", (4096, n)),))
        return price(call, H200).seconds

    assert seconds(50257) > 4 * seconds(50304)


def test_a_last_wave_that_is_nearly_empty_takes_as_long_as_a_full_one() -> None:
    """Twelve tiles more than the 132 multiprocessors have at once."""

    def teraflops(m: int, n: int) -> float:
        call = Call("mm", (Operand("bf16", (m, 8192)), Operand("bf16", (8192, n))), (Operand("bf16", (m, n)),))
        cost = price(call, H200, KernelSettings(is_sustained=False))
        return cost.flops / cost.seconds / 1e12

    assert teraflops(11 * 128, 12 * 128) > 1.2 * teraflops(12 * 128, 12 * 128)


def test_an_unknown_operator_moves_its_bytes() -> None:
    tensor = Operand("f32", (4096, 4096))
    cost = price(Call("some_library::something", (tensor, tensor), (tensor,)), H200)
    assert cost.moved_bytes == 3 * tensor.size_bytes


def measured() -> Iterator[tuple[str, Call, float]]:
    for family, found in json.loads(TRUTH.read_text())["families"].items():
        for text, entry in found["calls"].items():
            if "hot" in entry:
                yield family, Call.parse(text), 1e-6 * math.sqrt(max(entry["hot"], 0.5) * max(entry.get("cold", entry["hot"]), 0.5))


MEDIANS = {
    "products": 0.10,
    "attention": 0.08,
    "elementwise": 0.06,
    "layouts": 0.12,
    "reductions": 0.22,
    "losses": 0.10,
    "norms": 0.15,
    "indexing": 0.20,
    "convolution": 0.25,
    "optimizers": 0.15,
    "copies": 0.10,
    "float8": 0.08,
    "tf32": 0.15,
    "scattered": 0.10,
    "scans": 0.15,
    "sorts": 0.30,
    "odd products": 0.20,
    "dilated": 0.20,
    "resized": 0.20,
    "factors": 0.20,
    "kept on the host": 0.05,
}
"""How far the median call of a family may be from its measurement."""


def test_prices_are_near_what_an_h200_did() -> None:
    errors: dict[str, list[float]] = {}
    for family, call, seconds in measured():
        cost = price(call, H200, KernelSettings(allow_tf32=family == "tf32", is_sustained=False))
        if cost.seconds:
            errors.setdefault(family, []).append(abs(math.log(cost.seconds / seconds)))
    assert errors.keys() == MEDIANS.keys()
    far = {family: statistics.median(found) for family, found in errors.items() if statistics.median(found) > MEDIANS[family]}
    assert not far


def test_a_recurrent_layer_is_priced_by_its_weights_not_by_what_it_keeps() -> None:
    steps, weights = Operand("f32", (64, 128, 1024)), (Operand("f32", (4096, 1024)),) * 4
    kept = Operand("u8", (2**30,))
    cost = price(Call("_cudnn_rnn_backward", (steps, weights, 4, kept), (steps,)), H200)
    assert cost.flops == 2 * 2 * 64 * 128 * 4 * 4096 * 1024
    assert "recurrent" in cost.assumption


@pytest.mark.parametrize(
    "text",
    [
        "_linalg_svd f32[4096,4096] > f32[4096,4096] f32[4096] f32[4096,4096]",
        "_linalg_eigh f32[4096,4096] > f32[4096] f32[4096,4096]",
        "_fft_c2c c64[4096,4096] (1) 0 T > c64[4096,4096]",
        "mylib::fused_attention f32[4096,4096] > f32[4096,4096]",
    ],
)
def test_an_operator_that_no_rule_prices_says_so(text: str) -> None:
    assert "no rule prices it" in price(Call.parse(text), H200).assumption


@pytest.mark.parametrize(
    "name",
    ["add.Tensor", "add_.Tensor", "_foreach_pow.Scalar", "copy_", "gelu", "masked_fill_.Scalar", "where.self", "topk"],
)
def test_ordinary_operators_are_silent(name: str) -> None:
    tensor = Operand("f32", (64, 64))
    assert price(Call(name, (tensor,), (tensor,)), H200).assumption == ""


def microseconds(text: str) -> float:
    return 1e6 * price(Call.parse(text), H200, KernelSettings(is_sustained=False)).seconds


@pytest.mark.parametrize(
    ("text", "measured"),
    [
        ("index_select f32[50000,64] 0 i64[500000] > f32[500000,64]", 302),
        ("index_select f32[30000,16] 0 i64[300000] > f32[300000,16]", 182),
        ("index.Tensor i64[2,1000000] (-;bool[1000000]) > i64[2,999991]", 26),
        ("index_add f32[50000,256] 0 i64[500000] f32[500000,256] > f32[50000,256]", 940),
        ("scatter_add_ f32[50000,4,64] 0 i64[449993,4,64]@1,0,0 f32[449993,4,64] > f32[50000,4,64]", 354),
        ("index_put f32[2535,12] (i64[153664]) f32[153664,12]@1,153664 T > f32[2535,12]", 150),
        ("cumsum f32[4,1024,512,16] 1 > f32[4,1024,512,16]", 407),
        ("sum.dim_IntList f32[100000,256] (0) T > f32[1,256]", 107),
        ("bmm bf16[8192,4,4] bf16[8192,4,4] > bf16[8192,4,4]", 8.4),
        ("upsample_bilinear2d_backward bf16[4,10,384,384] (2*384) (4;10;2*48) F > bf16[4,10,48,48]", 1058),
        ("_to_copy f32[2048,32000] > h:f32[2048,32000]", 166_800),
    ],
)
def test_how_memory_is_reached_decides_the_price(text: str, measured: float) -> None:
    """Groups of threads for rows, atomics on one place, steps that wait for each other: bytes alone are far off."""
    assert microseconds(text) == pytest.approx(measured, rel=0.4)


@pytest.mark.parametrize("world", [8, 64])
def test_shards_are_copied_once_and_whole_tensors_twice_over(world: int):
    """Only a GPU's own part is written into what is gathered; what was gathered is read and written."""
    own, whole = Operand("bf16", (2**27 // world,)), Operand("bf16", (2**27,))
    into = price(Call("fsdp::all_gather_copy_in", ((own,), whole, (own.numel,), own.numel, 0), (own, whole)), H200)
    apart = price(Call("fsdp::split_with_sizes_copy", (whole, (own.numel,), 1), ()), H200)
    assert into.moved_bytes == 2 * own.size_bytes
    assert apart.moved_bytes == 2 * whole.size_bytes
    assert apart.seconds > apart.moved_bytes / H200.memory_bandwidth
