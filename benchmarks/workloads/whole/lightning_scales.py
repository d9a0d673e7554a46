"""Lightning: images of several sizes, validation and a checkpoint inside the epoch."""

import itertools
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")


class Images(Dataset):
    def __init__(self, count, sizes):
        self.count, self.sizes = count, sizes

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        side = self.sizes[index // 16 % len(self.sizes)]
        return torch.zeros(3, side, side), index % 100


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, 2, 1, bias=False), nn.BatchNorm2d(outside), nn.SiLU())


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        widths = (3, 64, 128, 256, 512)
        self.body = nn.Sequential(*(block(a, b) for a, b in itertools.pairwise(widths)))
        self.head = nn.Linear(512, 100)

    def forward(self, images):
        return self.head(self.body(images).mean((2, 3)))

    def training_step(self, batch, number):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, number):
        self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-4)


torch.manual_seed(1)
trainer = L.Trainer(
    max_epochs=1,
    val_check_interval=30,
    default_root_dir=tempfile.mkdtemp(),
    accelerator="gpu",
    devices=1,
    precision="bf16-mixed",
    enable_progress_bar=False,
    enable_model_summary=False,
    logger=False,
)
train = DataLoader(Images(16 * 80, (192, 224, 256, 320, 384)), batch_size=16)
trainer.fit(Classifier(), train, DataLoader(Images(64 * 4, (448,)), batch_size=64))
