"""Proximal policy optimization on made-up games: frames collected step by step, several epochs of shuffled minibatches
over each."""

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

torch.manual_seed(7)
GAMES, STEPS, ACTIONS = 64, 128, 18


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
        )
        self.policy, self.value = nn.Linear(512, ACTIONS), nn.Linear(512, 1)

    def forward(self, frames):
        hidden = self.body(frames.float() / 255)
        return Categorical(logits=self.policy(hidden)), self.value(hidden).squeeze(1)


player = Player().cuda()
optimizer = torch.optim.Adam(player.parameters(), lr=2.5e-4, eps=1e-5)
frames = torch.zeros(STEPS, GAMES, 4, 84, 84, dtype=torch.uint8, device="cuda")
actions, chances, rewards, values = (torch.zeros(STEPS, GAMES, device="cuda") for _ in range(4))
seen = torch.randint(0, 255, (GAMES, 4, 84, 84), dtype=torch.uint8, device="cuda")
for update in range(12):
    for step in range(STEPS):
        frames[step] = seen
        with torch.no_grad():
            policy, values[step] = player(seen)
            action = policy.sample()
            actions[step], chances[step] = action, policy.log_prob(action)
        rewards[step] = torch.randn(GAMES, device="cuda")
        seen = torch.cat([seen[:, 1:], torch.randint(0, 255, (GAMES, 1, 84, 84), dtype=torch.uint8, device="cuda")], 1)
    with torch.no_grad():
        following, advantage = player(seen)[1], torch.zeros(GAMES, device="cuda")
        advantages = torch.zeros_like(rewards)
        for step in reversed(range(STEPS)):
            error = rewards[step] + 0.99 * following - values[step]
            advantages[step] = advantage = error + 0.99 * 0.95 * advantage
            following = values[step]
        returns = advantages + values
    flat = [t.flatten(0, 1) for t in (frames, actions, chances, advantages, returns)]
    for _ in range(4):
        for picked in torch.randperm(STEPS * GAMES, device="cuda").split(2048):
            x, a, before, gain, target = (t[picked] for t in flat)
            policy, value = player(x)
            gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            ratio = (policy.log_prob(a) - before).exp()
            clipped = torch.min(ratio * gain, ratio.clamp(0.9, 1.1) * gain)
            loss = -clipped.mean() + 0.5 * F.mse_loss(value, target) - 0.01 * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(player.parameters(), 0.5)
            optimizer.step()
    print(update, loss.item())
