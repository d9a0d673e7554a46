"""One epoch over sentences of many lengths, padded to the longest of a batch; AMP; a checkpoint at the end."""

import os
import tempfile

import torch
from common import Text, llama, pad
from torch.utils.data import DataLoader

torch.manual_seed(0)
model = llama().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
loader = DataLoader(Text(1200), batch_size=8, shuffle=True, collate_fn=pad)
for step, batch in enumerate(loader):
    batch = {k: v.cuda() for k, v in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
    if step % 50 == 0:
        print(step, loss.item())
torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, os.path.join(tempfile.mkdtemp(), "c.pt"))
