"""A vision transformer, unfrozen in three stages with a new optimizer for each, a moving average of its weights, mixed images, and
a validation with the average after each stage."""

import copy

import torch
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Vision(nn.Module):
    def __init__(self, width=640, depth=12, classes=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token, self.places = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 197, width))
        self.layers = nn.ModuleList(Layer(width, 10) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


torch.manual_seed(5)
model = Vision().cuda()
average = copy.deepcopy(model).requires_grad_(False)
for stage, trained in enumerate(([model.head, model.norm], [model.head, model.norm, *model.layers[8:]], [model])):
    model.requires_grad_(False)
    for part in trained:
        part.requires_grad_(True)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3 / 4**stage)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)
    for _ in range(40):
        images, labels = torch.randn(96, 3, 224, 224, device="cuda"), torch.randint(0, 1000, (96,), device="cuda")
        share = float(torch.distributions.Beta(0.8, 0.8).sample())
        images = share * images + (1 - share) * images.flip(0)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            said = model(images)
            loss = share * F.cross_entropy(said, labels) + (1 - share) * F.cross_entropy(said, labels.flip(0))
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for kept, now in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(now, 0.01)
    average.eval()
    right = 0
    with torch.inference_mode():
        for _ in range(5):
            right += (average(torch.randn(400, 3, 224, 224, device="cuda")).argmax(-1) == 7).sum().item()
    print(stage, loss.item(), right)
