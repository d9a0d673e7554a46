"""fp16 with a loss scaler, gradients of four batches added up, workers and pinned memory, an evaluation every ten updates."""

import torch
from common import Text, llama, pad
from torch.utils.data import DataLoader


@torch.no_grad()
def evaluate(model, batches):
    model.eval()
    total = 0.0
    for batch in batches:
        batch = {name: tensor.cuda() for name, tensor in batch.items()}
        with torch.autocast("cuda", torch.float16):
            total += model(**batch).loss.item()
    model.train()
    return total


def main():
    torch.manual_seed(3)
    model = llama(layers=4, hidden=1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    training = DataLoader(Text(640, 7, top=800), batch_size=4, shuffle=True, collate_fn=pad, num_workers=2, pin_memory=True)
    held_out = DataLoader(Text(64, 8, top=1200), batch_size=8, collate_fn=pad)
    updates = 0
    for number, batch in enumerate(training):
        batch = {name: tensor.cuda(non_blocking=True) for name, tensor in batch.items()}
        with torch.autocast("cuda", torch.float16):
            loss = model(**batch).loss / 4
        scaler.scale(loss).backward()
        if number % 4 == 3:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            updates += 1
            if updates % 10 == 0:
                print(updates, evaluate(model, held_out))


if __name__ == "__main__":
    main()
