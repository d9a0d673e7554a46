"""Images with most patches hidden (MAE); the encoder alone is kept, the cache emptied, a classifier trained on its features."""

import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

torch.manual_seed(11)
config = ViTMAEConfig(
    hidden_size=512, num_hidden_layers=8, num_attention_heads=8, intermediate_size=2048, decoder_num_hidden_layers=4
)
model = ViTMAEForPreTraining(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(40):
    images = torch.randn(96 if step < 30 else 128, 3, 224, 224, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(pixel_values=images).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
encoder = model.vit
del model, optimizer, loss, images
torch.cuda.empty_cache()
encoder.config.mask_ratio = 0.0
encoder.embeddings.config.mask_ratio = 0.0
head = torch.nn.Sequential(torch.nn.LayerNorm(512), torch.nn.Linear(512, 1000)).cuda()
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
for _ in range(30):
    images = torch.randn(64, 3, 224, 224, device="cuda")
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        features = encoder(pixel_values=images).last_hidden_state.float().mean(1)
    loss = torch.nn.functional.cross_entropy(head(features), torch.randint(0, 1000, (64,), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
