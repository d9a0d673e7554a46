"""Momentum contrast: two encoders, a queue of negatives, crops of five sizes, a checkpoint every thirty steps."""

import copy
import os
import random
import tempfile

import torch
import torch.nn.functional as F
from torch import nn


def block(inputs, outputs, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


torch.manual_seed(0)
random.seed(1)
encoder = nn.Sequential(
    block(3, 64, 2),
    block(64, 128, 2),
    block(128, 256, 2),
    block(256, 256, 1),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 128),
).cuda()
slow = copy.deepcopy(encoder).requires_grad_(False)
queue = F.normalize(torch.randn(128, 4096, device="cuda"), dim=0)
optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9)
folder, place = tempfile.mkdtemp(), 0
for step in range(90):
    size = random.choice([96, 112, 128, 160, 192])
    one, other = torch.randn(64, 3, size, size).cuda(), torch.randn(64, 3, size, size).cuda()
    query = F.normalize(encoder(one), dim=1)
    with torch.no_grad():
        for behind, ahead in zip(slow.parameters(), encoder.parameters(), strict=True):
            behind.mul_(0.999).add_(ahead, alpha=0.001)
        key = F.normalize(slow(other), dim=1)
    logits = torch.cat([(query * key).sum(1, keepdim=True), query @ queue.clone()], 1) / 0.07
    loss = F.cross_entropy(logits, torch.zeros(64, dtype=torch.long, device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    queue[:, place : place + 64] = key.T
    place = (place + 64) % 4096
    if step % 30 == 29:
        torch.save(encoder.state_dict(), os.path.join(folder, "encoder.pt"))
