"""A GPT under a preconditioner that is made anew every ten steps (eigenvectors of each weight's statistics), packed rows,
clipped."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
WIDTH, VOCAB = 512, 16384


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, 8, 64).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + self.out(mixed)
        return x + self.down(F.relu(self.up(self.after(x))).square())


class Preconditioned(torch.optim.Optimizer):
    """Adam in the eigenbasis of the running second moments of rows and columns."""

    def __init__(self, parameters, lr=3e-3, every=10):
        super().__init__(parameters, {"lr": lr, "every": every})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state, g = self.state[p], p.grad.float()
                if not state:
                    state["step"] = 0
                    state["mean"], state["square"] = torch.zeros_like(g), torch.zeros_like(g)
                    if p.dim() == 2 and max(p.shape) <= 4096:
                        state["sides"] = [torch.zeros(n, n, device=p.device) for n in p.shape]
                        state["bases"] = None
                state["step"] += 1
                if "sides" in state:
                    rows, columns = state["sides"]
                    rows.lerp_(g @ g.T, 0.05)
                    columns.lerp_(g.T @ g, 0.05)
                    if state["step"] % group["every"] == 1:
                        state["bases"] = [
                            torch.linalg.eigh(side + 1e-6 * torch.eye(len(side), device=p.device))[1] for side in (rows, columns)
                        ]
                    left, right = state["bases"]
                    g = left.T @ g @ right
                state["mean"].lerp_(g, 0.1)
                state["square"].lerp_(g * g, 0.05)
                update = state["mean"] / (state["square"].sqrt() + 1e-8)
                if "sides" in state:
                    left, right = state["bases"]
                    update = left @ update @ right.T
                p.add_(update.to(p.dtype), alpha=-group["lr"])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, words):
        x = self.tokens(words)
        for each in self.blocks:
            x = each(x)
        return self.head(self.norm(x))


model = Model().cuda()
optimizer = Preconditioned(model.parameters())
for step in range(45):
    words = torch.randint(0, VOCAB, (16, 513), device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        logits = model(words[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 15 == 0:
        print(step, loss.item())
