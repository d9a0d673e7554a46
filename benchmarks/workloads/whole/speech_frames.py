"""Frames of speech from letters, in float16 with a loss scaler: letters of many lengths, each repeated for as many frames as it
lasts, a decoder of transformer layers, two losses, and samples every 25 steps."""

import random

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(1)
draw = random.Random(3)


class Acoustic(nn.Module):
    def __init__(self, width=384, letters=80, mels=80):
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        layer = {"d_model": width, "nhead": 6, "dim_feedforward": 1536, "batch_first": True, "activation": "gelu"}
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 4, enable_nested_tensor=False)
        self.lasting = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, 1))
        self.decoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 6, enable_nested_tensor=False)
        self.mels = nn.Linear(width, mels)

    def forward(self, letters, padding, places, frame_padding):
        x = self.encoder(self.letters(letters), src_key_padding_mask=padding)
        lasting = self.lasting(x).squeeze(-1)
        frames = torch.gather(x, 1, places[..., None].expand(-1, -1, x.shape[-1]))
        return lasting, self.mels(self.decoder(frames, src_key_padding_mask=frame_padding))


def batch(count):
    letters = [draw.randint(20, 140) for _ in range(count)]
    frames = [sum(draw.randint(3, 9) for _ in range(length)) for length in letters]
    most, longest = max(letters), max(frames)
    places = torch.zeros(count, longest, dtype=torch.long)
    for row, (length, end) in enumerate(zip(letters, frames, strict=True)):
        places[row, :end] = torch.arange(end) * length // end
    padding = torch.arange(most)[None] >= torch.tensor(letters)[:, None]
    frame_padding = torch.arange(longest)[None] >= torch.tensor(frames)[:, None]
    return [part.cuda(non_blocking=True) for part in (torch.randint(1, 80, (count, most)), padding, places, frame_padding)]


model = Acoustic().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, betas=(0.9, 0.98))
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
for step in range(100):
    letters, padding, places, frame_padding = batch(24)
    target = torch.randn(*places.shape, 80, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        lasting, said = model(letters, padding, places, frame_padding)
        loss = F.l1_loss(said, target) + 0.1 * F.mse_loss(lasting.float(), torch.ones_like(lasting, dtype=torch.float32))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if step % 25 == 24:
        model.eval()
        with torch.no_grad():
            samples = [model(*batch(4))[1].float().cpu() for _ in range(3)]
        model.train()
        print(step, float(loss), samples[0].shape)
