"""Q-learning from frames: a memory that fills on the GPU, a second network that follows, quantiles, priorities, plays between."""

import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(39)
draw = random.Random(39)
ACTIONS, QUANTILES, LARGEST = 12, 51, 6_000


def network():
    return nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()),
        *(
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
            nn.Linear(512, ACTIONS * QUANTILES),
            nn.Unflatten(1, (ACTIONS, QUANTILES)),
        ),
    )


online, target = network().cuda(), network().cuda()
target.load_state_dict(online.state_dict())
target.requires_grad_(False)
optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, eps=1.5e-4)
memory, priorities = [], torch.zeros(LARGEST)
middles = (torch.arange(QUANTILES, device="cuda") + 0.5) / QUANTILES
frames = torch.zeros(4, 84, 84, device="cuda")
for played in range(2400):
    if draw.random() < max(0.05, 1 - played / 1000):
        action = draw.randrange(ACTIONS)
    else:
        with torch.no_grad():
            action = int(online(frames.unsqueeze(0)).mean(-1).argmax())
    after = torch.cat((frames[1:], torch.rand(1, 84, 84, device="cuda")))
    memory.append((frames.to(torch.bfloat16), action, draw.random(), after.to(torch.bfloat16)))
    priorities[len(memory) - 1] = 1.0
    frames = after
    if played < 400 or played % 8:
        continue
    chosen = torch.multinomial(priorities[: len(memory)], 64, replacement=True).tolist()
    before = torch.stack([memory[i][0] for i in chosen]).float()
    actions = torch.tensor([memory[i][1] for i in chosen], device="cuda")
    rewards = torch.tensor([memory[i][2] for i in chosen], device="cuda")
    following = torch.stack([memory[i][3] for i in chosen]).float()
    with torch.no_grad():
        best = online(following).mean(-1).argmax(1)
        wanted = rewards.unsqueeze(1) + 0.99 * target(following)[torch.arange(64, device="cuda"), best]
    found = online(before)[torch.arange(64, device="cuda"), actions]
    error = wanted.unsqueeze(1) - found.unsqueeze(2)
    weight = (middles.view(1, -1, 1) - (error < 0).float()).abs()
    losses = (
        (weight * F.huber_loss(found.unsqueeze(2).expand_as(error), wanted.unsqueeze(1).expand_as(error), reduction="none"))
        .sum(1)
        .mean(1)
    )
    optimizer.zero_grad()
    losses.mean().backward()
    nn.utils.clip_grad_norm_(online.parameters(), 10.0)
    optimizer.step()
    priorities[chosen] = losses.detach().cpu() + 1e-3
    if played % 800 == 0:
        target.load_state_dict(online.state_dict())
        print(played, losses.mean().item())
