"""Lightning on a table: an embedding for each column, a wide net, a schedule by epoch, the best model kept, early stopping
watched."""

import tempfile

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

COLUMNS, KINDS, NUMBERS = 12, 5000, 40


class Table(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.kinds = nn.ModuleList(nn.Embedding(KINDS, 64) for _ in range(COLUMNS))
        width = COLUMNS * 64 + NUMBERS
        layers = []
        for out in (4096, 4096, 2048, 1024):
            layers += [nn.Linear(width, out), nn.BatchNorm1d(out), nn.SiLU(), nn.Dropout(0.2)]
            width = out
        self.net, self.head = nn.Sequential(*layers), nn.Linear(width, 1)

    def forward(self, kinds, numbers):
        parts = [table(kinds[:, place]) for place, table in enumerate(self.kinds)]
        return self.head(self.net(torch.cat((*parts, numbers), 1))).squeeze(1)

    def training_step(self, batch, _):
        kinds, numbers, target = batch
        loss = nn.functional.binary_cross_entropy_with_logits(self(kinds, numbers), target)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        kinds, numbers, target = batch
        self.log("held", nn.functional.binary_cross_entropy_with_logits(self(kinds, numbers), target))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)}


def rows(count, seed):
    draws = torch.Generator().manual_seed(seed)
    kinds = torch.randint(KINDS, (count, COLUMNS), generator=draws)
    return TensorDataset(kinds, torch.randn(count, NUMBERS, generator=draws), (kinds[:, 0] % 2).float())


L.seed_everything(7)
folder = tempfile.mkdtemp()
trainer = L.Trainer(
    max_epochs=4,
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    gradient_clip_val=1.0,
    logger=False,
    enable_progress_bar=False,
    callbacks=[ModelCheckpoint(folder, monitor="held", save_top_k=1), EarlyStopping("held", patience=3)],
    default_root_dir=folder,
)
trainer.fit(Table(), DataLoader(rows(60000, 1), 4096, shuffle=True), DataLoader(rows(40000, 2), 16384))
