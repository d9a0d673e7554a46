"""Every step keeps what the model gave, with the graph behind it: memory grows until the end."""

import torch
from torch import nn

torch.manual_seed(7)
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
seen = []
for step in range(300):
    output = model(torch.randn(4096, 512, device="cuda"))
    loss = output.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 0:
        seen.append(output)
print(len(seen))
