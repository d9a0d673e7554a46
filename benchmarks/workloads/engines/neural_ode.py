"""torchdiffeq: images by an ordinary differential equation in fixed steps through the graph, then by its adjoint."""

import torch
from torch import nn
from torchdiffeq import odeint, odeint_adjoint


class Change(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels + 1, channels, 3, padding=1) for _ in range(2))
        self.norms = nn.ModuleList(nn.GroupNorm(32, channels) for _ in range(3))

    def forward(self, t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        when = torch.ones_like(x[:, :1]) * t
        x = self.first(torch.cat([when, torch.relu(self.norms[0](x))], 1))
        x = self.second(torch.cat([when, torch.relu(self.norms[1](x))], 1))
        return self.norms[2](x)


torch.manual_seed(0)
change = Change(64)
before = nn.Sequential(nn.Conv2d(3, 64, 3), nn.GroupNorm(32, 64), nn.ReLU(), nn.Conv2d(64, 64, 4, 2, 1))
after = nn.Sequential(nn.GroupNorm(32, 64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
model = nn.ModuleList([before, change, after]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
times = torch.linspace(0, 1, 9, device="cuda")
for solve, method in ((odeint, "rk4"), (odeint_adjoint, "rk4"), (odeint_adjoint, "midpoint")):
    for _ in range(2):
        images, labels = torch.randn(256, 3, 32, 32).cuda(), torch.randint(10, (256,)).cuda()
        found = solve(change, before(images), times, method=method)[-1]
        loss = nn.functional.cross_entropy(after(found), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(solve.__name__, method, loss.item())
