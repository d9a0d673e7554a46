"""Two passes a step against sharp minima, averaged weights from the second half on, their batch norm made anew at the end,
evaluated."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)


def block(inside, outside, stride):
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.GELU(),
        nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.GELU(),
    )


model = nn.Sequential(
    block(3, 64, 1),
    block(64, 128, 2),
    block(128, 256, 2),
    block(256, 384, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(384, 100),
).cuda()
images, classes = torch.randn(2100, 3, 64, 64), torch.randint(0, 100, (2100,))
training = DataLoader(TensorDataset(images, classes), batch_size=128, shuffle=True)
held_out = DataLoader(TensorDataset(images[:700], classes[:700]), batch_size=512)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)
averaged, schedule = AveragedModel(model), SWALR(optimizer, swa_lr=0.02)

for epoch in range(4):
    for x, y in training:
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        F.cross_entropy(model(x), y).backward()
        norm = torch.norm(torch.stack([p.grad.norm() for p in model.parameters()]))
        moved = []
        with torch.no_grad():
            for parameter in model.parameters():
                step = parameter.grad * (0.05 / (norm + 1e-12))
                parameter.add_(step)
                moved.append(step)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for parameter, step in zip(model.parameters(), moved, strict=True):
                parameter.sub_(step)
        optimizer.step()
        optimizer.zero_grad()
    if epoch >= 2:
        averaged.update_parameters(model)
        schedule.step()
update_bn(training, averaged, device="cuda")
averaged.eval()
with torch.inference_mode():
    right = sum((averaged(x.cuda()).argmax(1).cpu() == y).sum().item() for x, y in held_out)
print(right / 700)
