"""Segmentation of images of many sizes: an encoder and decoder of convolutions with batch norm, channels last, a moving average,
validated at full size."""

import itertools
import random

import torch
from torch import nn
from torch.nn import functional as F


def block(inside, outside, stride=1):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class Net(nn.Module):
    def __init__(self, widths=(48, 96, 192, 384), classes=21):
        super().__init__()
        self.stem = block(3, widths[0])
        self.down = nn.ModuleList([block(a, b, 2) for a, b in itertools.pairwise(widths)])
        self.up = nn.ModuleList([block(a + b, a) for a, b in itertools.pairwise(widths)][::-1])
        self.drop = nn.Dropout2d(0.1)
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        kept = [self.stem(x)]
        for layer in self.down:
            kept.append(layer(kept[-1]))
        x = kept.pop()
        for layer in self.up:
            skip = kept.pop()
            x = layer(torch.cat((skip, F.interpolate(x, size=skip.shape[2:], mode="bilinear", align_corners=False)), 1))
        return self.head(self.drop(x))


torch.manual_seed(3)
draw = random.Random(5)
model = Net().cuda().to(memory_format=torch.channels_last)
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
for step in range(90):
    height, width = 32 * draw.randint(5, 12), 32 * draw.randint(5, 12)
    images = torch.randn(8, 3, height, width).cuda().to(memory_format=torch.channels_last)
    labels = torch.randint(0, 21, (8, height, width)).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(images), labels, ignore_index=255)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    average.update_parameters(model)
    if step % 30 == 29:
        average.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            said = average(torch.randn(4, 3, 640, 896, device="cuda")).argmax(1)
        print(step, loss.item(), said.shape)
