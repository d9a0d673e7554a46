"""A small diffusion model with a moving average of its weights, which samples every 25 steps."""

import copy

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm = nn.GroupNorm(8, outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(128, outside)

    def forward(self, x, t):
        x = nn.functional.silu(self.norm(self.first(x))) + self.time(t)[:, :, None, None]
        return nn.functional.silu(self.second(x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 128), nn.SiLU(), nn.Linear(128, 128))
        self.down = nn.ModuleList([Block(3, 64), Block(64, 128), Block(128, 256)])
        self.middle = Block(256, 256)
        self.up = nn.ModuleList([Block(512, 128), Block(256, 64), Block(128, 64)])
        self.out = nn.Conv2d(64, 3, 1)

    def forward(self, x, t):
        t, kept = self.time(t[:, None]), []
        for block in self.down:
            x = block(x, t)
            kept.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x, t)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2)
            x = block(torch.cat((x, kept.pop()), 1), t)
        return self.out(x)


torch.manual_seed(4)
model = UNet().cuda()
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(80):
    images, noise, t = (
        torch.randn(32, 3, 64, 64, device="cuda"),
        torch.randn(32, 3, 64, 64, device="cuda"),
        torch.rand(32, device="cuda"),
    )
    loss = nn.functional.mse_loss(model(images + t[:, None, None, None] * noise, t), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.01)
    if step % 25 == 24:
        with torch.no_grad():
            sample = torch.randn(256, 3, 64, 64, device="cuda")
            for at in range(10):
                sample = sample - 0.1 * average(sample, torch.full((256,), 1 - at / 10, device="cuda"))
        print(step, sample.mean().item())
