"""Sequences grow while training goes on: 512 tokens, from step 60 on 1,024, from step 90 on 2,048."""

import torch
from common import llama

torch.manual_seed(0)
model = llama().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for step in range(110):
    n = 512 if step < 60 else 1024 if step < 90 else 2048
    x = torch.randint(0, 32000, (4, n), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=x, labels=x).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
