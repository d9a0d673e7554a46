"""Lightning's ``Trainer``."""

from __future__ import annotations

import lightning
import torch
import torch.nn.functional as F
from ddp import Net


class Task(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = F.cross_entropy(self.net(batch[0]).flatten(0, 1), batch[0].flatten())
        print(f"rank {self.global_rank} loss {loss.item():.9f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    lightning.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.randint(0, 2000, (128, 256)))
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_steps=4, accumulate_grad_batches=2, devices=1, **off)
    trainer.fit(Task(), torch.utils.data.DataLoader(data, batch_size=16))


if __name__ == "__main__":
    main()
