"""A student with checkpointing learns from a teacher, over sentences of many lengths; the cache is emptied now and then."""

import torch
import torch.nn.functional as F
from common import Text, llama, pad
from torch.utils.data import DataLoader


def main():
    torch.manual_seed(0)
    teacher = llama(layers=8, hidden=1024).cuda().eval().requires_grad_(False)
    student = llama(layers=4, hidden=512).cuda().train()
    student.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for step, batch in enumerate(DataLoader(Text(480, 5, top=900), batch_size=4, shuffle=True, collate_fn=pad)):
        batch = {name: tensor.cuda() for name, tensor in batch.items()}
        with torch.autocast("cuda", torch.bfloat16):
            with torch.no_grad():
                aims = teacher(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            said = student(**batch)
            apart = F.kl_div(
                F.log_softmax(said.logits.float(), -1), F.log_softmax(aims.float(), -1), log_target=True, reduction="batchmean"
            )
        (said.loss + 0.1 * apart).backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 40 == 39:
            torch.cuda.empty_cache()


main()
