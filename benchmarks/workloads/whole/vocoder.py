"""A vocoder: sound from spectrograms, judged at many periods; short pieces in training, whole sentences in validation."""

import itertools
import random

import torch
import torchaudio
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

torch.manual_seed(37)
draw = random.Random(37)
HOP = 256


class Residual(nn.Module):
    def __init__(self, width, kernel):
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(width, width, kernel, padding=(kernel - 1) * d // 2, dilation=d)) for d in (1, 3)
        )

    def forward(self, x):
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = weight_norm(nn.Conv1d(80, 256, 7, padding=3))
        self.ups = nn.ModuleList(
            weight_norm(nn.ConvTranspose1d(256 >> i, 128 >> i, 2 * rate, rate, padding=rate // 2))
            for i, rate in enumerate((8, 8, 4))
        )
        self.residuals = nn.ModuleList(nn.ModuleList(Residual(128 >> i, kernel) for kernel in (3, 7)) for i in range(3))
        self.last = weight_norm(nn.Conv1d(32, 1, 7, padding=3))

    def forward(self, x):
        x = self.first(x)
        for up, residuals in zip(self.ups, self.residuals, strict=False):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(residual(x) for residual in residuals) / len(residuals)
        return torch.tanh(self.last(F.leaky_relu(x)))


class Periods(nn.Module):
    def __init__(self, period):
        super().__init__()
        self.period = period
        sizes = (1, 32, 128, 256)
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (3, 1), padding=(2, 0))) for a, b in itertools.pairwise(sizes)
        )
        self.last = weight_norm(nn.Conv2d(256, 1, (3, 1), padding=(1, 0)))

    def forward(self, x):
        x = F.pad(x, (0, -x.shape[-1] % self.period), "reflect")
        x, found = x.view(*x.shape[:2], -1, self.period), []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            found.append(x)
        return self.last(x).flatten(1), found


spectrum = torchaudio.transforms.MelSpectrogram(22050, 1024, hop_length=HOP, n_mels=80).cuda()
generator, judges = Generator().cuda(), nn.ModuleList(Periods(period) for period in (2, 3, 5)).cuda()
makes, judging = (
    torch.optim.AdamW(generator.parameters(), 2e-4, (0.8, 0.99)),
    torch.optim.AdamW(judges.parameters(), 2e-4, (0.8, 0.99)),
)
for step in range(40):
    generator.train()
    sound = torch.randn(16, 1, 32 * HOP).cuda()
    heard = spectrum(sound.squeeze(1))[..., :32]
    made = generator(torch.log(heard.clamp(min=1e-5)))
    judging.zero_grad()
    loss = sum(((1 - judge(sound)[0]) ** 2).mean() + (judge(made.detach())[0] ** 2).mean() for judge in judges)
    loss.backward()
    judging.step()
    makes.zero_grad()
    loss = 45 * F.l1_loss(spectrum(made.squeeze(1))[..., :32], heard)
    for judge in judges:
        said, found = judge(made)
        with torch.no_grad():
            _, wanted = judge(sound)
        loss = loss + ((1 - said) ** 2).mean() + 2 * sum(F.l1_loss(a, b) for a, b in zip(found, wanted, strict=False))
    loss.backward()
    makes.step()
    if step % 20 == 19:
        generator.eval()
        with torch.no_grad():
            for _ in range(4):
                whole = torch.randn(1, 1, draw.randint(150, 500) * HOP).cuda()
                made = generator(torch.log(spectrum(whole.squeeze(1)).clamp(min=1e-5)))
        print(step, loss.item(), made.abs().mean().item())
