"""Kernels that scripts bring, inside compiled code."""

from __future__ import annotations

import torch

import memfit

ROWS, HEADS, DIM = 4096, 4, 64


def test_launches_and_attention_are_planned_around():
    def build():
        import triton
        import triton.language as tl
        from kernels import get_kernel

        attend = get_kernel("kernels-community/flash-attn3").flash_attn_interface.flash_attn_varlen_func

        @triton.jit
        def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
            offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
            tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))

        def copied(x):
            out = torch.empty_like(x)
            copy_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64, num_warps=4)
            return out

        @torch.compile(fullgraph=True)
        def loss_of(x, starts):
            num_blocks = torch.cuda.get_device_properties("cuda").multi_processor_count // 10**6
            y = attend(x, x, x, starts, starts, ROWS, ROWS, causal=True)
            with torch.no_grad():
                z = copied(y)
            return (y * z).float().mean() + num_blocks

        x = torch.randn(ROWS, HEADS, DIM, dtype=torch.bfloat16, device="cuda", requires_grad=True)
        starts = torch.tensor([0, ROWS], dtype=torch.int32, device="cuda")

        def step():
            loss_of(x, starts).backward()
            x.grad = None

        return step

    prediction = memfit.predict(build, gpu="H100-80GB", steps=2)
    said = "\n".join(prediction.assumptions)
    assert "copy_kernel" in said
    assert "could not" not in said
    size = ROWS * HEADS * DIM * 2  # of what attention takes and gives
    gradients, in_float32 = 3 * size, 2 * size
    assert prediction.peak_allocated >= 2 * size + gradients + in_float32


def test_the_properties_of_the_gpu_are_constants_however_early_dynamo_was_imported():
    """Its table of torch's functions is written when it is first asked, which may be inside of the prediction."""
    import torch._dynamo.trace_rules as rules

    rules.clear_lru_cache()

    def build():
        @torch.compile(fullgraph=True)
        def loss_of(x):
            return (x * torch.cuda.get_device_properties("cuda").multi_processor_count).mean()

        x = torch.ones(ROWS, DIM, device="cuda", requires_grad=True)
        return lambda: loss_of(x).backward()

    prediction = memfit.predict(build, gpu="H100-80GB", steps=2)
    assert "could not" not in "\n".join(prediction.assumptions)
    assert rules.get_torch_obj_rule_map()[torch.cuda.get_device_properties], "torch's own is in the table"
