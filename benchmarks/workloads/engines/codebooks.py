"""vector-quantize-pytorch: an autoencoder with residual codebooks that begin by k-means, keep averages and replace dead codes."""

import torch
from torch import nn
from vector_quantize_pytorch import ResidualVQ

torch.manual_seed(0)
encoder = nn.Sequential(
    nn.Conv2d(3, 128, 4, 2, 1), nn.GELU(), nn.Conv2d(128, 256, 4, 2, 1), nn.GELU(), nn.Conv2d(256, 256, 3, 1, 1)
)
decoder = nn.Sequential(
    nn.Conv2d(256, 256, 3, 1, 1), nn.GELU(), nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(128, 3, 4, 2, 1)
)
codes = ResidualVQ(dim=256, num_quantizers=4, codebook_size=1024, kmeans_init=True, kmeans_iters=5, threshold_ema_dead_code=2)


def quantized(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = encoder(images)
    found, _, penalty = codes(hidden.flatten(2).transpose(1, 2))
    return found.transpose(1, 2).unflatten(2, hidden.shape[2:]), penalty.sum()


model = nn.ModuleList([encoder, codes, decoder]).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(5):
    images = torch.randn(32, 3, 128, 128).cuda()
    found, penalty = quantized(images)
    loss = nn.functional.mse_loss(decoder(found), images) + penalty
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
model.eval()
with torch.no_grad():
    print(decoder(quantized(torch.randn(128, 3, 128, 128).cuda())[0]).std().item())
