"""torchaudio's Hybrid Demucs learns to separate sources, and is validated on a longer piece, chunk by chunk with overlaps."""

import torch
import torchaudio
from torchaudio.models import hdemucs_low

RATE = 16_000
torch.manual_seed(0)
model = hdemucs_low(sources=["drums", "bass", "other", "vocals"]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
spectrum = torchaudio.transforms.Spectrogram(1024, hop_length=256, power=None).cuda()


def distance(found: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
    sounds = torch.nn.functional.l1_loss(found, true)
    return sounds + (spectrum(found) - spectrum(true)).abs().mean()


@torch.no_grad()
def separate(mix: torch.Tensor, seconds: float = 6.0, overlap: float = 0.5) -> torch.Tensor:
    size, step = int(RATE * (seconds + overlap)), int(RATE * seconds)
    fade = torchaudio.transforms.Fade(fade_in_len=0, fade_out_len=int(overlap * RATE), fade_shape="linear").cuda()
    found = torch.zeros(mix.shape[0], 4, *mix.shape[1:], device=mix.device)
    for start in range(0, mix.shape[-1] - size + 1, step):
        found[..., start : start + size] += fade(model(mix[..., start : start + size]))
        fade.fade_in_len = int(overlap * RATE)
    return found


for epoch in range(2):
    model.train()
    for _ in range(4):
        sources = torch.randn(4, 4, 2, RATE * 5).cuda()
        loss = distance(model(sources.sum(1)), sources)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
    model.eval()
    piece = torch.randn(1, 4, 2, RATE * 40).cuda()
    print(epoch, loss.item(), (separate(piece.sum(1)) - piece).abs().mean().item())
