"""CLIP by Hugging Face: pictures and words, towers checkpointed, captions of many lengths, the temperature clamped,
retrieval at the end."""

import torch
from shared import Sentences, collate
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

torch.manual_seed(6)
text = CLIPTextConfig(
    vocab_size=20000,
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=8,
    num_attention_heads=8,
    max_position_embeddings=96,
)
vision = CLIPVisionConfig(
    hidden_size=640, intermediate_size=2560, num_hidden_layers=8, num_attention_heads=10, image_size=176, patch_size=16
)
model = CLIPModel(CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=384)).cuda()
model.gradient_checkpointing_enable()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.9, 0.98), fused=True)
captions = Sentences(8000, 8, shortest=5, longest=77, middle=18, vocab=19000)


def batch(first, count):
    words = collate([captions[(first + number) % len(captions)] for number in range(count)])
    return torch.rand(count, 3, 176, 176).cuda(), words["input_ids"].cuda(), words["attention_mask"].cuda()


model.train()
for step in range(70):
    pictures, tokens, mask = batch(96 * step, 96)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        said = model(input_ids=tokens, attention_mask=mask, pixel_values=pictures, return_loss=True)
    said.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6052)
model.eval()
seen, read = [], []
with torch.no_grad():
    for number in range(8):
        pictures, tokens, mask = batch(7000 + 128 * number, 128)
        said = model(input_ids=tokens, attention_mask=mask, pixel_values=pictures)
        seen.append(said.image_embeds)
        read.append(said.text_embeds)
print((torch.cat(seen) @ torch.cat(read).t()).argmax(1).float().mean().item())
