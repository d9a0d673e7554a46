"""Organs in volumes: a U-Net of three dimensions on patches under autocast, whole volumes by windows that overlap."""

import itertools
import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(38)
draw = random.Random(38)


class Twice(nn.Sequential):
    def __init__(self, given, made):
        super().__init__(
            *(nn.Conv3d(given, made, 3, padding=1), nn.InstanceNorm3d(made, affine=True), nn.LeakyReLU(inplace=True)),
            *(nn.Conv3d(made, made, 3, padding=1), nn.InstanceNorm3d(made, affine=True), nn.LeakyReLU(inplace=True)),
        )


class Net(nn.Module):
    def __init__(self, widths=(24, 48, 96, 192)):
        super().__init__()
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip((1, *widths), widths, strict=False))
        self.lift = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
        self.up = nn.ModuleList(Twice(2 * a, a) for a in widths[:-1])
        self.head = nn.Conv3d(widths[0], 5, 1)

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x if not kept else F.max_pool3d(x, 2))
            kept.append(x)
        for lift, up, beside in zip(reversed(self.lift), reversed(self.up), reversed(kept[:-1]), strict=False):
            x = up(torch.cat((lift(x), beside), 1))
        return self.head(x)


def dice(logits, labels):
    shares, wanted = logits.softmax(1), F.one_hot(labels, 5).movedim(-1, 1).float()
    both = (shares * wanted).sum((2, 3, 4))
    return 1 - ((2 * both + 1) / (shares.sum((2, 3, 4)) + wanted.sum((2, 3, 4)) + 1)).mean()


def by_windows(model, volume, size=96, step=64):
    total = torch.zeros(5, *volume.shape[1:], device="cuda")
    times = torch.zeros(1, *volume.shape[1:], device="cuda")
    places = [[*range(0, extent - size, step), extent - size] for extent in volume.shape[1:]]
    windows = [(z, y, x) for z in places[0] for y in places[1] for x in places[2]]
    for i in range(0, len(windows), 4):
        several = windows[i : i + 4]
        patch = torch.stack([volume[:, z : z + size, y : y + size, x : x + size] for z, y, x in several]).cuda()
        found = model(patch).float()
        for one, (z, y, x) in zip(found, several, strict=False):
            total[:, z : z + size, y : y + size, x : x + size] += one
            times[:, z : z + size, y : y + size, x : x + size] += 1
    return (total / times).argmax(0)


model = Net().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.99, nesterov=True)
scaler = torch.amp.GradScaler("cuda")
for step in range(30):
    model.train()
    patch, labels = torch.randn(2, 1, 96, 96, 96).cuda(), torch.randint(5, (2, 96, 96, 96)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(patch)
        loss = F.cross_entropy(logits, labels) + dice(logits, labels)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 12.0)
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 14:
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.float16):
            for _ in range(2):
                volume = torch.randn(1, *(draw.choice((128, 160, 192)) for _ in range(3)))
                found = by_windows(model, volume)
        print(step, loss.item(), found.float().mean().item())
