"""Batches and sequences grow together: four short sequences first, twelve long ones in the end."""

import torch
from shared import qwen

torch.manual_seed(5)
model = qwen(layers=5).cuda()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
for step in range(100):
    batch, length = 4 + step // 30 * 2 + (step > 90) * 2, 128 * (1 + step // 20)
    tokens = torch.randint(0, 32000, (batch, length), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
