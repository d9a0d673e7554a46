"""PyG: a variational autoencoder of a graph learns which edges there are, against edges that are drawn anew in each epoch."""

import torch
from torch_geometric.data import Data
from torch_geometric.nn import VGAE, GCNConv
from torch_geometric.transforms import RandomLinkSplit
from torch_geometric.utils import negative_sampling, to_undirected


class Encoder(torch.nn.Module):
    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = GCNConv(inside, 2 * outside, cached=True)
        self.mean, self.spread = (GCNConv(2 * outside, outside, cached=True) for _ in range(2))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.first(x, edges).relu()
        return self.mean(x, edges), self.spread(x, edges)


torch.manual_seed(0)
graph = Data(x=torch.randn(60_000, 500), edge_index=to_undirected(torch.randint(60_000, (2, 400_000)), num_nodes=60_000))
split = RandomLinkSplit(num_val=0.05, num_test=0.1, is_undirected=True, split_labels=True, add_negative_train_samples=False)
train, valid, test = split(graph.to("cuda"))
model = VGAE(Encoder(500, 128)).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    model.train()
    optimizer.zero_grad()
    z = model.encode(train.x, train.edge_index)
    false = negative_sampling(train.edge_index, z.size(0), train.pos_edge_label_index.size(1), method="sparse")
    loss = model.recon_loss(z, train.pos_edge_label_index, false) + model.kl_loss() / train.num_nodes
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        z = model.encode(valid.x, valid.edge_index)
        scores = torch.cat([model.decode(z, valid.pos_edge_label_index), model.decode(z, valid.neg_edge_label_index)])
        print(epoch, loss.item(), scores.cpu().numpy().mean())
