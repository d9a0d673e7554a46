"""PyG: a transformer on a graph of several kinds of nodes and edges, in parts of the authors, with a validation on all of them."""

import torch
import torch.nn.functional as F
from torch_geometric.data import HeteroData
from torch_geometric.nn import HGTConv, Linear

torch.manual_seed(0)
data = HeteroData()
for kind, count, width in (("author", 40_000, 334), ("paper", 140_000, 512), ("term", 78_000, 50), ("venue", 200, 64)):
    data[kind].x = torch.randn(count, width)
data["author"].y = torch.randint(4, (40_000,))
data["author"].train = torch.rand(40_000) < 0.3
for first, relation, second, count in (
    ("author", "writes", "paper", 190_000),
    ("paper", "names", "term", 850_000),
    ("paper", "appears", "venue", 140_000),
):
    ends = torch.stack([torch.randint(data[first].num_nodes, (count,)), torch.randint(data[second].num_nodes, (count,))])
    data[first, relation, second].edge_index = ends
    data[second, f"rev_{relation}", first].edge_index = ends.flip(0)


class Net(torch.nn.Module):
    def __init__(self, hidden: int = 128, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.inputs = torch.nn.ModuleDict({kind: Linear(-1, hidden) for kind in data.node_types})
        self.convs = torch.nn.ModuleList(HGTConv(hidden, hidden, data.metadata(), heads) for _ in range(layers))
        self.out = Linear(hidden, 4)

    def forward(self, x: dict, edges: dict) -> torch.Tensor:
        x = {kind: self.inputs[kind](value).relu_() for kind, value in x.items()}
        for conv in self.convs:
            x = conv(x, edges)
        return self.out(x["author"])


data, net = data.to("cuda"), Net().to("cuda")
with torch.no_grad():
    net(data.x_dict, data.edge_index_dict)
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3, weight_decay=1e-3)
for epoch in range(6):
    net.train()
    optimizer.zero_grad()
    mask = data["author"].train
    loss = F.cross_entropy(net(data.x_dict, data.edge_index_dict)[mask], data["author"].y[mask])
    loss.backward()
    optimizer.step()
    net.eval()
    with torch.no_grad():
        found = net(data.x_dict, data.edge_index_dict).argmax(-1)
        print(epoch, loss.item(), (found[~mask] == data["author"].y[~mask]).sum().item() / int((~mask).sum()))
