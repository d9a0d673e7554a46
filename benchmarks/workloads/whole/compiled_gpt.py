"""A GPT under torch.compile: accumulation, losses estimated now and then, clipped, weights in groups, the best of them kept."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(34)
torch.set_float32_matmul_precision("high")
VOCAB, LENGTH, WIDTH, HEADS, LAYERS = 50304, 1024, 768, 12, 6


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (each.view(b, t, HEADS, c // HEADS).transpose(1, 2) for each in self.qkv(self.norms[0](x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets=None):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))
        return logits, loss


def batch():
    ids = torch.randint(VOCAB, (8, LENGTH + 1))
    return ids[:, :-1].pin_memory().cuda(non_blocking=True), ids[:, 1:].pin_memory().cuda(non_blocking=True)


raw = Gpt().cuda()
groups = [
    {"params": [p for p in raw.parameters() if p.dim() >= 2], "weight_decay": 0.1},
    {"params": [p for p in raw.parameters() if p.dim() < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
model = torch.compile(raw)
best, kept = math.inf, None
for step in range(40):
    for group in optimizer.param_groups:
        group["lr"] = 6e-4 * min(1.0, (step + 1) / 10)
    for _ in range(2):
        ids, targets = batch()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            _, loss = model(ids, targets)
        (loss / 2).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 10 == 9:
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            losses = torch.stack([model(*batch())[1] for _ in range(4)])
        model.train()
        print(step, losses.mean().item())
        if losses.mean() < best or kept is None:
            best, kept = losses.mean().item(), copy.deepcopy(raw.state_dict())
