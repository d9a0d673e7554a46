"""accelerate: sentences of many lengths, gradients of four batches added up and clipped, an evaluation now and then."""

import torch
from accelerate import Accelerator
from shared import Sentences, collate, qwen
from torch.utils.data import DataLoader

torch.manual_seed(2)
accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision="bf16")
model = qwen()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
train = DataLoader(Sentences(400, 2), batch_size=4, shuffle=True, collate_fn=collate)
held_out = DataLoader(Sentences(64, 3, longest=700), batch_size=8, collate_fn=collate)
model, optimizer, train, held_out, schedule = accelerator.prepare(model, optimizer, train, held_out, schedule)
for number, batch in enumerate(train):
    with accelerator.accumulate(model):
        accelerator.backward(model(**batch).loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if number % 40 == 39:
        model.eval()
        with torch.no_grad():
            losses = [accelerator.gather(model(**batch).loss.repeat(8)) for batch in held_out]
        model.train()
        print(number, torch.cat(losses).mean().item())
