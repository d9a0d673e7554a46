"""Training is interrupted: a checkpoint is written, a second model is loaded from it onto the GPU, and training goes on."""

import os
import tempfile

import torch
from shared import qwen

torch.manual_seed(8)
path = os.path.join(tempfile.mkdtemp(), "checkpoint.pt")


def train(model, optimizer, steps):
    for _ in range(steps):
        tokens = torch.randint(0, 32000, (4, 640), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


model = qwen().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
train(model, optimizer, 30)
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
again = qwen().cuda()
checkpoint = torch.load(path, map_location="cuda")
again.load_state_dict(checkpoint["model"])
optimizer = torch.optim.AdamW(again.parameters(), lr=1e-5)
optimizer.load_state_dict(checkpoint["optimizer"])
del model
train(again, optimizer, 30)
