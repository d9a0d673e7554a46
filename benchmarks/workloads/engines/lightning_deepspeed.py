"""Lightning with DeepSpeed's third stage, accumulation, clipping and a validation after each epoch."""

import lightning as L
import torch
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel


class Language(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.save_hyperparameters()

    def configure_model(self) -> None:
        if not hasattr(self, "model"):
            self.model = GPT2LMHeadModel(GPT2Config(n_embd=1024, n_layer=12, n_head=16, vocab_size=32_000, use_cache=False))

    def training_step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.model(input_ids=batch[0], labels=batch[0]).loss

    def validation_step(self, batch: list[torch.Tensor]) -> None:
        logits = self.model(input_ids=batch[0]).logits
        self.log("perplexity", nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten()).exp())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


def rows(count: int, length: int) -> TensorDataset:
    return TensorDataset(torch.randint(32_000, (count, length)))


L.seed_everything(0)
trainer = L.Trainer(
    accelerator="gpu",
    devices=1,
    strategy=DeepSpeedStrategy(stage=3, reduce_bucket_size=20_000_000),
    precision="bf16-mixed",
    max_epochs=2,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    num_sanity_val_steps=1,
)
trainer.fit(Language(), DataLoader(rows(32, 768), 4), DataLoader(rows(16, 1024), 8))
