"""accelerate trains GPT-NeoX: bfloat16, four batches to a step, lengths that grow by epoch, state saved after each,
evaluated in between."""

import tempfile

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, get_linear_schedule_with_warmup

accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
torch.manual_seed(8)
config = GPTNeoXConfig(
    vocab_size=30000,
    hidden_size=640,
    num_hidden_layers=10,
    num_attention_heads=10,
    intermediate_size=2560,
    max_position_embeddings=1024,
)
config.use_cache = False
model = GPTNeoXForCausalLM(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
schedule = get_linear_schedule_with_warmup(optimizer, 5, 60)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)


def loader(length, count, batch, shuffle):
    tokens = torch.randint(0, 30000, (count, length), generator=torch.Generator().manual_seed(length))
    return accelerator.prepare(DataLoader(TensorDataset(tokens), batch, shuffle=shuffle))


for epoch, length in enumerate((256, 512, 896)):
    model.train()
    for (tokens,) in loader(length, 480, 8, True):
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    with torch.no_grad():
        for (tokens,) in loader(1024, 64, 16, False):
            losses.append(accelerator.gather(model(input_ids=tokens, labels=tokens).loss))
    accelerator.print(epoch, torch.stack(losses).mean().item())
    accelerator.save_state(tempfile.mkdtemp())
