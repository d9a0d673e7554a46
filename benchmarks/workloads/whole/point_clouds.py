"""Point clouds of many sizes: nearest neighbours by distances, features of edges, the largest kept, voted on with augmentations."""

import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(9)
draw = random.Random(4)


class Edges(nn.Module):
    def __init__(self, width, out, neighbours):
        super().__init__()
        self.neighbours = neighbours
        self.net = nn.Sequential(nn.Linear(2 * width, out), nn.LayerNorm(out), nn.GELU(), nn.Linear(out, out))

    def forward(self, x):
        near = torch.cdist(x, x).topk(self.neighbours, largest=False).indices
        batch = torch.arange(len(x), device=x.device)[:, None, None]
        others = x[batch, near]
        center = x.unsqueeze(2).expand_as(others)
        return self.net(torch.cat((center, others - center), -1)).amax(2)


class Clouds(nn.Module):
    def __init__(self):
        super().__init__()
        self.edges = nn.ModuleList([Edges(3, 64, 16), Edges(64, 128, 16), Edges(128, 256, 16)])
        self.head = nn.Sequential(nn.Linear(448, 512), nn.GELU(), nn.Dropout(0.3), nn.Linear(512, 40))

    def forward(self, x):
        kept = []
        for edges in self.edges:
            x = edges(x)
            kept.append(x)
        return self.head(torch.cat(kept, -1).amax(1))


def clouds(count):
    points = draw.choice((384, 512, 640, 768, 1024))
    return torch.randn(count, points, 3).cuda(), torch.randint(40, (count,)).cuda()


model = Clouds().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=120)
for step in range(120):
    model.train()
    cloud, labels = clouds(24)
    loss = F.cross_entropy(model(cloud * (0.8 + 0.4 * torch.rand(24, 1, 3, device="cuda"))), labels, label_smoothing=0.2)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 40 == 39:
        model.eval()
        with torch.no_grad():
            cloud, labels = clouds(48)
            votes = sum(model(cloud * scale).softmax(1) for scale in (0.9, 1.0, 1.1))
        print(step, loss.item(), (votes.argmax(1) == labels).float().mean().item())
