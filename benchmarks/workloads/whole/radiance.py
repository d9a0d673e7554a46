"""A radiance field: rays drawn at random, sampled twice, and every 40 steps a whole picture rendered in chunks and kept."""

import torch
from torch import nn

torch.manual_seed(6)


class Field(nn.Module):
    def __init__(self, width=256, octaves=10):
        super().__init__()
        self.octaves = octaves
        inside = 3 + 6 * octaves
        self.first = nn.Sequential(
            *[m for n in range(4) for m in (nn.Linear(inside if n == 0 else width, width), nn.ReLU(inplace=True))]
        )
        self.second = nn.Sequential(
            *[m for n in range(3) for m in (nn.Linear(inside + width if n == 0 else width, width), nn.ReLU(inplace=True))]
        )
        self.density, self.colour = (
            nn.Linear(width, 1),
            nn.Sequential(nn.Linear(width + 3, width // 2), nn.ReLU(), nn.Linear(width // 2, 3)),
        )

    def forward(self, points, directions):
        waves = [points]
        for octave in range(self.octaves):
            waves += [torch.sin(2**octave * points), torch.cos(2**octave * points)]
        waves = torch.cat(waves, -1)
        hidden = self.second(torch.cat([waves, self.first(waves)], -1))
        seen = torch.cat([hidden, directions.expand_as(points)], -1)
        return torch.relu(self.density(hidden)).squeeze(-1), torch.sigmoid(self.colour(seen))


def render(field, origins, directions, depths):
    points = origins[:, None] + depths[..., None] * directions[:, None]
    density, colour = field(points, directions[:, None])
    gaps = torch.cat([depths[:, 1:] - depths[:, :-1], torch.full_like(depths[:, :1], 1e3)], 1)
    opaque = 1 - torch.exp(-density * gaps)
    through = torch.cumprod(torch.cat([torch.ones_like(opaque[:, :1]), 1 - opaque + 1e-10], 1), 1)[:, :-1]
    weights = opaque * through
    return (weights[..., None] * colour).sum(1), weights


def draw_rays(coarse, fine, origins, directions, samples):
    depths = torch.linspace(2, 6, 64, device="cuda").expand(len(origins), 64)
    if samples:
        depths = depths + torch.rand_like(depths) * (4 / 64)
    rough, weights = render(coarse, origins, directions, depths)
    places = torch.searchsorted(weights.detach().cumsum(1).contiguous(), torch.rand(len(origins), 128, device="cuda"))
    more = torch.gather(depths, 1, places.clamp(max=63))
    smooth, _ = render(fine, origins, directions, torch.sort(torch.cat([depths, more], 1), 1).values)
    return rough, smooth


coarse, fine = Field().cuda(), Field().cuda()
optimizer = torch.optim.Adam([*coarse.parameters(), *fine.parameters()], lr=5e-4)
origins, directions = torch.randn(400 * 400, 3), nn.functional.normalize(torch.randn(400 * 400, 3), dim=-1)
colours, pictures = torch.rand(400 * 400, 3), []
for step in range(160):
    chosen = torch.randint(0, len(origins), (2048,))
    rough, smooth = draw_rays(coarse, fine, origins[chosen].cuda(), directions[chosen].cuda(), True)
    truth = colours[chosen].cuda()
    loss = ((rough - truth) ** 2).mean() + ((smooth - truth) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 39:
        with torch.no_grad():
            parts = [
                draw_rays(coarse, fine, o.cuda(), d.cuda(), False)[1]
                for o, d in zip(origins.split(8192), directions.split(8192), strict=True)
            ]
            pictures.append(torch.cat(parts).view(400, 400, 3))
        print(step, loss.item())
