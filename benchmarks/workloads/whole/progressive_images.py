"""A residual network on images that grow over three phases, channels last in bfloat16, with smoothed labels and a momentum
optimizer without decay for norms; each phase ends with a validation on larger images, and batch statistics are measured again at
the end."""

import torch
from torch import nn
from torch.nn import functional as F


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride):
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outside, 1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.side = None
        if stride != 1 or inside != outside:
            self.side = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return F.relu(self.body(x) + (x if self.side is None else self.side(x)), inplace=True)


def network(classes=200):
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for depth, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        for place in range(depth):
            parts.append(Bottleneck(inside, width, stride if place == 0 else 1))
            inside = 4 * width
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(inside, classes))


torch.manual_seed(0)
model = network().cuda().to(memory_format=torch.channels_last)
norms = [parameter for parameter in model.parameters() if parameter.ndim == 1]
others = [parameter for parameter in model.parameters() if parameter.ndim > 1]
optimizer = torch.optim.SGD([{"params": others, "weight_decay": 5e-5}, {"params": norms}], lr=0.1, momentum=0.9, nesterov=True)
for size, count, larger in ((128, 128, 160), (176, 96, 224), (224, 64, 288)):
    for _ in range(40):
        images = torch.randn(count, 3, size, size).cuda(non_blocking=True).to(memory_format=torch.channels_last)
        labels = torch.randint(0, 200, (count,)).cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for _ in range(4):
            right = (model(torch.randn(256, 3, larger, larger, device="cuda")).argmax(-1) == 3).float().mean()
    model.train()
    print(size, loss.item(), right.item())
torch.optim.swa_utils.update_bn([torch.randn(64, 3, 224, 224) for _ in range(5)], model, device="cuda")
