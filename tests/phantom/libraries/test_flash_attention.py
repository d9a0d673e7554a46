"""flash_attn: what is kept for backward and taken on the way, to the byte."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.phantom.libraries import flash_attention as flash
from memfit.phantom.libraries import flash_layers as layers
from memfit.units import MIB

BATCH, LENGTH, HEADS, DIM = 4, 2048, 16, 64
TENSOR = BATCH * LENGTH * HEADS * DIM * 2
SUMS = BATCH * HEADS * LENGTH * 4


def attention(function, heads_of_keys: int = HEADS, dim: int = DIM, **options):
    """The allocated bytes after forward beside the inputs, and the peak of backward above that."""

    def build():
        query = torch.randn(BATCH, LENGTH, HEADS, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        key, value = (
            torch.randn(BATCH, LENGTH, heads_of_keys, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            for _ in range(2)
        )
        levels.append(torch.cuda.memory_allocated())

        def step():
            out = function(query, key, value, **options)
            levels.append(torch.cuda.memory_allocated())
            grad = torch.empty_like(out)
            levels.append(torch.cuda.memory_allocated())
            torch.cuda.reset_peak_memory_stats()
            torch.autograd.grad(out, (query, key, value), grad)
            levels.append(torch.cuda.max_memory_allocated())

        return step

    levels: list[int] = []
    memfit.predict(build, gpu="H200", steps=1)
    return levels[1] - levels[0], levels[3] - levels[2]


def test_version_2():
    kept, taken = attention(flash.flash_attn_func, causal=True)
    assert kept == TENSOR + SUMS + 512  # output, sums, seed
    assert taken == 3 * TENSOR + SUMS + 2 * TENSOR  # gradients, sums, the query's gradient in float32


def test_version_2_with_grouped_heads_has_gradients_for_each():
    _, taken = attention(flash.flash_attn_func, heads_of_keys=4)
    assert taken == TENSOR + 2 * TENSOR // 4 + SUMS + 2 * TENSOR + 2 * TENSOR


def test_version_2_pads_heads_to_a_multiple_of_8():
    kept, _ = attention(flash.flash_attn_func, dim=60)
    assert kept == 4 * TENSOR + SUMS + 512  # three padded inputs and the output


def test_version_2_deterministic():
    _, plain = attention(flash.flash_attn_func)
    _, deterministic = attention(flash.flash_attn_func, deterministic=True)
    splits = -(-132 // (BATCH * HEADS))
    assert deterministic - plain == (splits - 1) * 2 * TENSOR


def test_version_3():
    kept, taken = attention(flash.flash_attn_func_3, causal=True)
    assert kept == TENSOR + SUMS + 512
    semaphores = -(-LENGTH // 128) * BATCH * HEADS * 4
    assert taken == 3 * TENSOR + 2 * SUMS + 2 * TENSOR + semaphores


def test_version_3_sums_grouped_heads_in_float32():
    _, taken = attention(flash.flash_attn_func_3, heads_of_keys=4)
    accumulated = 2 * TENSOR + 2 * 2 * TENSOR // 4
    assert taken == TENSOR + 2 * TENSOR // 4 + 2 * SUMS + accumulated + -(-LENGTH // 128) * BATCH * HEADS * 4


def test_sequences_one_after_the_other():
    begins = [0, 1000, 3000, 8192]

    def function(query, key, value):
        lengths = torch.tensor(begins, dtype=torch.int32, device="cuda")
        flat = (x.flatten(0, 1) for x in (query, key, value))
        return flash.flash_attn_varlen_func(*flat, lengths, lengths, 5192, 5192, causal=True)

    kept, taken = attention(function)
    assert kept == TENSOR + SUMS + 512 + 512  # and where they begin
    rows = BATCH * LENGTH + 128 * 3
    expected = 3 * TENSOR + 4 * rows * HEADS + 4 * rows * HEADS * DIM
    assert expected <= taken < expected + MIB  # the allocator gives a rest of up to a MiB with it


def test_packed_gradients_are_one_tensor():
    def build():
        packed = torch.randn(2, 128, 3, 4, 32, device="cuda", dtype=torch.float16, requires_grad=True)
        pair = torch.randn(2, 128, 2, 4, 32, device="cuda", dtype=torch.float16, requires_grad=True)

        def step():
            flash.flash_attn_qkvpacked_func(packed).sum().backward()
            flash.flash_attn_kvpacked_func(packed[:, :, 0], pair).sum().backward()
            assert packed.grad.shape == packed.shape
            assert pair.grad.shape == pair.shape

        return step

    memfit.predict(build, gpu="H200", steps=1)


def test_a_few_queries_divide_the_keys():
    def peak(length: int) -> int:
        def build():
            key = torch.empty(1, 65536, 1, 64, device="cuda", dtype=torch.float16)
            return lambda: flash.flash_attn_func(torch.empty(1, length, 1, 64, device="cuda", dtype=torch.float16), key, key)

        return memfit.predict(build, gpu="H200", steps=1).peak_allocated

    assert peak(64) > 65536 * 64 * 2 + MIB  # in float32, once for each part of the keys


def test_the_real_package_runs_above_the_same_kernels(tmp_path, monkeypatch):
    """With its Python part installed, and the compiled one as it is without a GPU: not there."""
    if importlib.util.find_spec("flash_attn"):
        pytest.skip("flash_attn is installed here")
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn" / "__init__.py").write_text(
        "import flash_attn_2_cuda\n"
        "def attend(q, k, v):\n"
        "    out, lse, _, seed = flash_attn_2_cuda.fwd(q, k, v, None, None, 0.0, 1.0, True, -1, -1, 0.0, False, None)\n"
        "    dq = q.new_empty(q.shape)\n"
        "    options = (None, 0.0, 1.0, True, -1, -1, 0.0, False, None, seed)\n"
        "    return out, lse, flash_attn_2_cuda.bwd(out, q, k, v, out, lse, dq, dq, dq, *options)[3]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with phantom():
            import flash_attn

            out, sums, rows = flash_attn.attend(*(torch.ones(2, 100, 4, 64, device="cuda", dtype=torch.half) for _ in range(3)))
            assert (out.shape, sums.shape, rows.shape) == ((2, 100, 4, 64), (2, 4, 100), (2, 4, 128))
    finally:
        sys.modules.pop("flash_attn", None)
        sys.modules.pop("flash_attn_2_cuda", None)


def test_transformers_finds_both_versions():
    utils = pytest.importorskip("transformers.utils.import_utils")
    if importlib.util.find_spec("flash_attn"):
        pytest.skip("flash_attn is installed here")
    assert not utils.is_flash_attn_2_available()
    with phantom():
        assert utils.is_flash_attn_2_available()
        assert utils.is_flash_attn_3_available()
    assert not utils.is_flash_attn_2_available()


# -- the rest of the package ---------------------------------------------------------------------------------------------------


def test_padding_is_taken_away_and_put_back():
    with phantom():
        states = torch.randn(2, 4, 8, device="cuda", requires_grad=True)
        mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]).cuda()
        rows, where, begins, longest, used = layers.unpad_input(states, mask)
        assert rows.shape == (4, 8)
        assert begins.tolist() == [0, 3, 4]
        assert (longest, used.tolist()) == (3, [3, 1])
        layers.pad_input(rows, where, 2, 4).sum().backward()
        assert states.grad.shape == states.shape


def test_rotary_losses_and_norms_run_forward_and_backward():
    with phantom():
        x = torch.randn(2, 16, 4, 8, device="cuda", requires_grad=True)
        layers.apply_rotary_emb(x, *(torch.ones(16, 4, device="cuda") for _ in range(2))).sum().backward()
        qkv = torch.randn(2, 16, 3, 4, 8, device="cuda", requires_grad=True)
        layers.RotaryEmbedding(8).cuda()(qkv * 1).sum().backward()
        assert qkv.grad.shape == qkv.shape
        logits = torch.randn(32, 100, device="cuda", requires_grad=True)
        layers.CrossEntropyLoss()(logits, torch.zeros(32, dtype=torch.long, device="cuda")).backward()
        assert logits.grad.shape == logits.shape
        norm = layers.RMSNorm(8).cuda()
        out, summed = norm(x, residual=torch.zeros_like(x), prenorm=True)
        (out + summed).sum().backward()
        assert norm.weight.grad.shape == (8,)


# -- time ----------------------------------------------------------------------------------------------------------------------


def seconds_by_operator(attend, make, *shape: int) -> dict[str, float]:
    """Seconds of one step's kernels of attention, forward and backward."""

    def build():
        parts = [torch.randn(*shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]

        def step():
            out = attend(*make(*parts))
            out.backward(torch.empty_like(out))

        return step

    found = memfit.predict(build, gpu="A100-80GB", steps=2).time.breakdown().by_operator
    return {name: seconds for name, seconds in found.items() if "attention" in name}


def as_given(*parts):
    return parts


def test_it_takes_as_long_as_torchs_flash_attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def torchs(query, key, value):
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    mine = seconds_by_operator(lambda *parts: flash.flash_attn_func(*parts, causal=True), as_given, 2, 4096, 8, 128)
    theirs = seconds_by_operator(torchs, as_given, 2, 8, 4096, 128)
    assert mine == pytest.approx(theirs)
    assert sorted(mine) == ["_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_backward"]


def test_sequences_one_after_the_other_do_not_see_each_other():
    def packed(query, key, value):
        begins = torch.arange(0, 8193, 2048, dtype=torch.int32, device="cuda")
        return flash.flash_attn_varlen_func(query, key, value, begins, begins, 2048, 2048)

    one_by_one = seconds_by_operator(flash.flash_attn_func, as_given, 4, 2048, 8, 128)
    assert seconds_by_operator(packed, as_given, 8192, 8, 128) == pytest.approx(one_by_one)


def test_a_window_leaves_keys_out_and_one_order_of_sums_costs_time():
    def attend(**options):
        return seconds_by_operator(lambda *parts: flash.flash_attn_func(*parts, causal=True, **options), as_given, 1, 8192, 8, 128)

    whole, backward = attend(), "_scaled_dot_product_flash_attention_backward"
    assert sum(attend(window_size=(255, 0)).values()) < sum(whole.values()) / 5
    assert attend(deterministic=True)[backward] == pytest.approx(1.81 * whole[backward])
    assert attend(deterministic=True)["_scaled_dot_product_flash_attention"] == whole["_scaled_dot_product_flash_attention"]
