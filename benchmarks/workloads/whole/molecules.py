"""Graphs of many sizes in batches, as molecules come: messages along edges, trained over epochs, validated, the best
weights kept."""

import copy
import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(11)
draw = random.Random(12)
WIDTH = 256


def molecule():
    atoms = draw.randint(8, 90)
    pairs = torch.tensor([(draw.randrange(atoms), draw.randrange(atoms)) for _ in range(atoms * 4)]).T
    return torch.randint(0, 100, (atoms,)), pairs, torch.randn(pairs.shape[1], 16)


def gather(graphs):
    atoms, pairs, bonds, owner, first = [], [], [], [], 0
    for number, (a, p, b) in enumerate(graphs):
        atoms.append(a)
        pairs.append(p + first)
        bonds.append(b)
        owner.append(torch.full((len(a),), number))
        first += len(a)
    return torch.cat(atoms), torch.cat(pairs, 1), torch.cat(bonds), torch.cat(owner)


class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * WIDTH + 16, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.update, self.norm = nn.GRUCell(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x, pairs, bonds):
        source, target = pairs
        sent = self.edge(torch.cat([x[source], x[target], bonds], 1))
        received = torch.zeros_like(x).index_add_(0, target, sent)
        return self.norm(self.update(received, x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.atoms = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList(Messages() for _ in range(5))
        self.out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def forward(self, atoms, pairs, bonds, owner, count):
        x = self.atoms(atoms)
        for layer in self.layers:
            x = layer(x, pairs, bonds)
        pooled = torch.zeros(count, WIDTH, device=x.device).scatter_reduce_(
            0, owner[:, None].expand_as(x), x, "amax", include_self=False
        )
        return self.out(pooled).squeeze(1)


data = [molecule() for _ in range(3000)]
training = torch.utils.data.DataLoader(data[:2600], batch_size=128, shuffle=True, collate_fn=gather, drop_last=False)
validation = torch.utils.data.DataLoader(data[2600:], batch_size=400, collate_fn=gather)
model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
best, kept = float("inf"), None
for epoch in range(4):
    model.train()
    for batch in training:
        atoms, pairs, bonds, owner = (part.cuda() for part in batch)
        count = int(batch[3].max()) + 1
        loss = F.smooth_l1_loss(model(atoms, pairs, bonds, owner, count), torch.randn(count, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        error = sum(model(*(part.cuda() for part in batch), 400).abs().mean().item() for batch in validation)
    if error < best:
        best, kept = error, copy.deepcopy(model.state_dict())
    print(epoch, error)
