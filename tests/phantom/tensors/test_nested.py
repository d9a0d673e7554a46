"""Jagged batches: nested tensors with attention, forward and backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

import memfit
from memfit.units import MIB

LENGTHS, DIM, HEADS = (100, 37, 512, 256), 256, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))


def test_attention_of_a_jagged_batch_is_flash_for_its_lengths():
    def build():
        model = Attention().cuda().bfloat16()
        sequences = [torch.randn(length, DIM, dtype=torch.bfloat16) for length in LENGTHS]

        def step():
            batch = torch.nested.nested_tensor(sequences, layout=torch.jagged, device="cuda")
            model(batch).values().float().pow(2).mean().backward()
            model.zero_grad()

        return step

    prediction = memfit.predict(build, gpu="H200", steps=2)
    in_float32 = 4 * HEADS * (sum(LENGTHS) + 128 * len(LENGTHS)) * (DIM // HEADS)  # the gradient of the query in flash's backward
    assert in_float32 < prediction.peak_allocated - 65 * MIB < 8 * MIB  # cuBLAS and cuBLASLt keep 65 MiB
    ran = {prediction.ledger.strings[name] for name in prediction.ledger.blocks.op}
    assert any("_flash_attention_forward" in name for name in ran)
