"""A transformer with a memory of earlier segments: documents are read segment by segment, the memory is carried on without its
graph, and is empty again at each new document; a held-out document is scored every 40 segments."""

import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(6)
draw = random.Random(13)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.pair, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))

    def forward(self, x, memory):
        seen = x if memory is None else torch.cat((memory, x), 1)
        own, all_of_it = self.norm(x), self.norm(seen)
        keys, values = self.pair(all_of_it).chunk(2, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query(own), keys, values))
        mask = torch.ones(x.shape[1], seen.shape[1], dtype=torch.bool, device=x.device).tril(seen.shape[1] - x.shape[1])
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return x + self.feed(self.after(x))


class Reader(nn.Module):
    def __init__(self, width=768, depth=8, words=24000, most=1024):
        super().__init__()
        self.most, self.words = most, nn.Embedding(words, width)
        self.layers, self.head = nn.ModuleList(Layer(width, 12) for _ in range(depth)), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words, memories):
        x, kept = self.words(words), []
        for layer, memory in zip(self.layers, memories, strict=True):
            kept.append(x.detach() if memory is None else torch.cat((memory, x.detach()), 1)[:, -self.most :])
            x = layer(x, memory)
        return self.head(x), kept


model = Reader().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
memories, left = [None] * 8, 0
for segment in range(160):
    if left == 0:
        memories, left = [None] * 8, draw.randint(2, 9)
    left -= 1
    words = torch.randint(0, 24000, (6, 257), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        said, memories = model(words[:, :-1], memories)
        loss = F.cross_entropy(said.flatten(0, 1), words[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    optimizer.zero_grad()
    if segment % 40 == 39:
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            held, score = [None] * 8, 0.0
            for _ in range(12):
                words = torch.randint(0, 24000, (16, 257), device="cuda")
                said, held = model(words[:, :-1], held)
                score += F.cross_entropy(said.float().flatten(0, 1), words[:, 1:].flatten()).item()
        print(segment, loss.item(), score)
