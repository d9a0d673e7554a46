"""Adapters on frozen weights, half precision with a loss scaler, checkpointed layers, sentences of many lengths."""

import torch
from shared import Sentences, collate, qwen
from torch import nn
from torch.utils.data import DataLoader


class Adapted(nn.Module):
    def __init__(self, layer, rank=16):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(layer.in_features, rank, bias=False), nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


torch.manual_seed(10)
model = qwen(layers=8).requires_grad_(False)
for block in model.model.layers:
    for name in ("q_proj", "v_proj"):
        setattr(block.self_attn, name, Adapted(getattr(block.self_attn, name)))
model.gradient_checkpointing_enable()
model.enable_input_require_grads()
model.cuda()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer, scaler = torch.optim.AdamW(trained, lr=1e-4), torch.amp.GradScaler("cuda")
for batch in DataLoader(Sentences(480, 11), batch_size=6, shuffle=True, collate_fn=collate):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(**{name: value.cuda() for name, value in batch.items()}).loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(trained, 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
