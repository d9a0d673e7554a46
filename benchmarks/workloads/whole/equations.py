"""A network that solves a differential equation: derivatives of derivatives, Adam first and L-BFGS afterwards, then a fine grid."""

import torch
from torch import nn

torch.manual_seed(5)
layers = [nn.Linear(3, 256), nn.Tanh()]
for _ in range(5):
    layers += [nn.Linear(256, 256), nn.Tanh()]
model = nn.Sequential(*layers, nn.Linear(256, 1)).cuda()


def residual(points):
    points.requires_grad_(True)
    u = model(points)
    first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
    second = [torch.autograd.grad(first[:, k].sum(), points, create_graph=True)[0][:, k] for k in range(2)]
    return first[:, 2] - 0.1 * (second[0] + second[1]) + u.squeeze(1) * first[:, 0]


def loss_of(inside, border):
    return residual(inside).square().mean() + 10 * (model(border) - torch.sin(border[:, :1])).square().mean()


optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(60):
    loss = loss_of(torch.rand(20000, 3, device="cuda"), torch.rand(4000, 3, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
inside, border = torch.rand(40000, 3, device="cuda"), torch.rand(8000, 3, device="cuda")
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=10, history_size=20)


def closure():
    optimizer.zero_grad()
    loss = loss_of(inside.detach(), border)
    loss.backward()
    return loss


for _ in range(4):
    print(optimizer.step(closure).item())
with torch.no_grad():
    axis = torch.linspace(0, 1, 128, device="cuda")
    grid = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij"), -1).view(-1, 3)
    print(torch.cat([model(part) for part in grid.split(2**18)]).mean().item())
