"""e3nn: convolutions of tensor products over atoms that are near; energies and forces, so that derivatives are derived again."""

import torch
from e3nn import o3
from e3nn.math import soft_one_hot_linspace
from e3nn.nn import FullyConnectedNet, Gate
from torch import nn

EDGES = o3.Irreps.spherical_harmonics(2)


class Convolution(nn.Module):
    def __init__(self, inside: o3.Irreps, outside: o3.Irreps) -> None:
        super().__init__()
        self.product = o3.FullyConnectedTensorProduct(inside, EDGES, outside, shared_weights=False)
        self.weights = FullyConnectedNet([10, 64, self.product.weight_numel], torch.nn.functional.silu)
        self.own = o3.Linear(inside, outside)

    def forward(self, x: torch.Tensor, ends: torch.Tensor, harmonics: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        messages = self.product(x[ends[0]], harmonics, self.weights(lengths))
        return self.own(x) + torch.zeros_like(self.own(x)).index_add(0, ends[1], messages) / 4


class Potential(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        scalars, gates, gated = o3.Irreps("32x0e"), o3.Irreps("24x0e"), o3.Irreps("16x1o+8x2e")
        self.species = nn.Embedding(5, 32)
        self.gates = nn.ModuleList(Gate(scalars, [torch.nn.functional.silu], gates, [torch.sigmoid], gated) for _ in range(3))
        inside = [scalars, *(gate.irreps_out for gate in self.gates[:-1])]
        self.convs = nn.ModuleList(Convolution(i, gate.irreps_in) for i, gate in zip(inside, self.gates, strict=True))
        self.head = o3.Linear(self.gates[-1].irreps_out, "1x0e")

    def forward(self, kinds: torch.Tensor, places: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        vectors = places[ends[0]] - places[ends[1]]
        harmonics = o3.spherical_harmonics(EDGES, vectors, normalize=True, normalization="component")
        lengths = soft_one_hot_linspace(vectors.norm(dim=1), 0.0, 5.0, 10, basis="smooth_finite", cutoff=True) * 10**0.5
        x = self.species(kinds)
        for conv, gate in zip(self.convs, self.gates, strict=True):
            x = gate(conv(x, ends, harmonics, lengths))
        return self.head(x)


torch.manual_seed(0)
model = Potential().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True)
draw = torch.Generator().manual_seed(0)
for step in range(6):
    atoms = (1500, 2200, 1800)[step % 3]
    places = (torch.rand(atoms, 3, generator=draw) * 30).cuda().requires_grad_()
    ends = torch.randint(atoms, (2, 12 * atoms), generator=draw)
    ends = ends[:, ends[0] != ends[1]].cuda()
    kinds = torch.randint(5, (atoms,), generator=draw).cuda()
    energy = model(kinds, places, ends).sum()
    forces = -torch.autograd.grad(energy, places, create_graph=True)[0]
    loss = energy.pow(2) / atoms + (forces - torch.randn_like(forces)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
