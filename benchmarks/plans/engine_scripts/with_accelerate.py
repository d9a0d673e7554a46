"""``accelerate``, with accumulation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from ddp import Net


def main() -> None:
    torch.manual_seed(0)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randint(0, 2000, (128, 256)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=16))
    for (tokens,) in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(f"rank {accelerator.process_index} loss {loss.item():.9f}", flush=True)


if __name__ == "__main__":
    main()
