"""A thousand steps of one shape."""

import torch
from common import llama

torch.manual_seed(0)
model = llama().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(1000):
    x = torch.randint(0, 32000, (4, 512), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(input_ids=x, labels=x).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
