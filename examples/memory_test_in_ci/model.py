"""The model whose memory is guarded."""

import torch
from torch import nn

HIDDEN = 4096


def build():
    model = nn.Sequential(nn.Linear(1024, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(2048, 1024, device="cuda")

    def step():
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
