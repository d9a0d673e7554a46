"""A language model on documents of many lengths: layers are computed again only where a batch is long, gradients are summed until
enough tokens were seen, and weights and optimizer go to the host every 25 steps."""

import torch
from common import Text, llama, pad

torch.manual_seed(4)
model = llama(layers=8).cuda()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
loader = torch.utils.data.DataLoader(
    Text(700, seed=9, mean=6.0, sigma=0.6, top=2600), batch_size=4, shuffle=True, collate_fn=pad, drop_last=True
)
tokens = steps = 0
for rows in loader:
    rows = {name: part.cuda(non_blocking=True) for name, part in rows.items()}
    is_long = rows["input_ids"].shape[1] > 900
    if is_long:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**rows).loss
    (loss / 2).backward()
    tokens += rows["input_ids"].numel()
    if tokens < 6000:
        continue
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    tokens, steps = 0, steps + 1
    if steps % 25 == 0:
        saved = {name: part.cpu() for name, part in model.state_dict().items()}
        moments = [{key: value.cpu() for key, value in state.items()} for state in optimizer.state.values()]
        print(steps, loss.item(), len(saved), len(moments))
