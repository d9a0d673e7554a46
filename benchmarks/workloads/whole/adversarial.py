"""Two networks against each other, an average of the generator's weights, and samples of it that are kept."""

import copy

import torch
from torch import nn


def up(inputs, outputs):
    return nn.Sequential(nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def down(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2))


torch.manual_seed(0)
generator = nn.Sequential(
    nn.Unflatten(1, (128, 1, 1)), nn.ConvTranspose2d(128, 512, 4), up(512, 256), up(256, 128), up(128, 64),
    nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh(),
).cuda()  # fmt: skip
judge = nn.Sequential(down(3, 64), down(64, 128), down(128, 256), nn.Flatten(), nn.Linear(256 * 64, 1)).cuda()
average = copy.deepcopy(generator).requires_grad_(False)
of_generator, of_judge = (torch.optim.Adam(network.parameters(), lr=2e-4) for network in (generator, judge))
loss_of = nn.BCEWithLogitsLoss()
real_label, fake_label = torch.ones(64, 1, device="cuda"), torch.zeros(64, 1, device="cuda")
samples = []
for step in range(80):
    real, made = torch.randn(64, 3, 64, 64).cuda(), generator(torch.randn(64, 128, device="cuda"))
    of_judge.zero_grad()
    (loss_of(judge(real), real_label) + loss_of(judge(made.detach()), fake_label)).backward()
    of_judge.step()
    of_generator.zero_grad()
    loss_of(judge(made), real_label).backward()
    of_generator.step()
    with torch.no_grad():
        for behind, ahead in zip(average.parameters(), generator.parameters(), strict=True):
            behind.lerp_(ahead, 0.01)
        if step % 20 == 19:
            samples.append(average(torch.randn(256, 128, device="cuda")))
