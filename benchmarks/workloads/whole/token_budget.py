"""Batches of about 8,192 tokens each: many short sentences or few long ones. Two sizes change at once."""

import random

import torch
from shared import Sentences, collate, qwen

torch.manual_seed(6)
data = Sentences(2500, 6)
order = sorted(range(len(data)), key=data.lengths.__getitem__)
batches, batch = [], []
for index in order:
    if batch and data.lengths[index] * (len(batch) + 1) > 8192:
        batches.append(batch)
        batch = []
    batch.append(index)
random.Random(6).shuffle(batches)
model = qwen().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for batch in batches[:90]:
    inputs = {name: value.cuda() for name, value in collate([data[index] for index in batch]).items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**inputs).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
