"""A GPT with dropout, trained in bfloat16 on random windows; every 20 steps it is evaluated, and writes text token by token."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(7)
model = GPT2LMHeadModel(GPT2Config(n_embd=768, n_layer=8, n_head=12, vocab_size=50304)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
data = torch.randint(0, 50304, (400_000,), generator=torch.Generator().manual_seed(1))


def batch(rows, length):
    starts = torch.randint(len(data) - length, (rows,))
    return torch.stack([data[start : start + length] for start in starts]).pin_memory().cuda(non_blocking=True)


for step in range(80):
    if step % 20 == 0:
        model.eval()
        with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
            losses = [model(input_ids=tokens, labels=tokens).loss.item() for tokens in (batch(16, 1024) for _ in range(4))]
        text = model.generate(batch(4, 32), max_new_tokens=60, do_sample=True, top_k=50, pad_token_id=0)
        print(step, sum(losses), text.shape)
        model.train()
    for _ in range(2):
        tokens = batch(6, 1024)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss / 2
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
