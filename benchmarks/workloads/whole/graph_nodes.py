"""Nodes of one large graph: samples of its neighbours in training, all of it in evaluation."""

import torch
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv

torch.manual_seed(33)
NODES, EDGES, WIDTH, KINDS = 60_000, 600_000, 128, 47
draw = torch.Generator().manual_seed(33)
features = torch.randn(NODES, WIDTH, generator=draw)
edges = torch.randint(NODES, (2, EDGES), generator=draw)
labels = torch.randint(KINDS, (NODES,), generator=draw)
by_target = edges[:, edges[1].argsort()]
starts = torch.searchsorted(by_target[1].contiguous(), torch.arange(NODES + 1))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv(WIDTH, 256), SAGEConv(256, 256), SAGEConv(256, KINDS)])

    def forward(self, x, edge_index):
        for number, layer in enumerate(self.layers):
            x = layer(x, edge_index)
            if number < 2:
                x = F.dropout(F.relu(x), 0.5, self.training)
        return x


def neighbourhood(seeds, fanouts):
    """The nodes that are reached from the seeds, and the edges on the way, numbered anew."""
    known, found = seeds, []
    last = seeds
    for fanout in fanouts:
        first, count = starts[last], (starts[last + 1] - starts[last]).clamp(min=1)
        places = first.unsqueeze(1) + (torch.rand(len(last), fanout, generator=draw) * count.unsqueeze(1)).long()
        sources = by_target[0][places.clamp(max=EDGES - 1)]
        found.append(torch.stack((sources.flatten(), last.repeat_interleave(fanout))))
        last = sources.flatten().unique()
        known = torch.cat((known, last[~torch.isin(last, known)]))
    number = torch.empty(NODES, dtype=torch.long)
    number[known] = torch.arange(len(known))
    return known, number[torch.cat(found, 1)]


model = Net().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(3):
    model.train()
    order = torch.randperm(NODES, generator=draw)[:12_000]
    for seeds in order.split(512):
        known, near = neighbourhood(seeds, (10, 5, 5))
        out = model(features[known].cuda(), near.cuda())[: len(seeds)]
        loss = F.cross_entropy(out, labels[seeds].cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = (model(features.cuda(), edges.cuda()).argmax(-1).cpu() == labels).float().mean()
    print(epoch, loss.item(), right.item())
