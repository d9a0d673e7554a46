"""A reward model: a better and a worse answer side by side, padded to the longer, bfloat16, accumulated, scored every 40 steps."""

import torch
from shared import Sentences, collate
from torch.nn import functional as F
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForSequenceClassification, get_cosine_schedule_with_warmup


class Pairs(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.better, self.worse = Sentences(count, seed, longest=900), Sentences(count, seed + 1, longest=900)

    def __len__(self):
        return len(self.better)

    def __getitem__(self, index):
        return self.better[index], self.worse[index]


def both(rows):
    batch = collate([row[0] for row in rows] + [row[1] for row in rows])
    return batch["input_ids"], batch["attention_mask"]


torch.manual_seed(4)
config = LlamaConfig(
    vocab_size=32000,
    hidden_size=768,
    intermediate_size=2048,
    num_hidden_layers=10,
    num_attention_heads=12,
    num_key_value_heads=4,
    num_labels=1,
    pad_token_id=0,
    use_cache=False,
)
model = LlamaForSequenceClassification(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01)
schedule = get_cosine_schedule_with_warmup(optimizer, 10, 160)
train = DataLoader(Pairs(1280, 1), batch_size=8, shuffle=True, collate_fn=both, drop_last=True)
held = DataLoader(Pairs(192, 9), batch_size=24, collate_fn=both)


def margin(tokens, mask):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(input_ids=tokens.cuda(), attention_mask=mask.cuda()).logits.squeeze(-1)
    better, worse = scores.float().chunk(2)
    return better - worse


for step, (tokens, mask) in enumerate(train):
    loss = -F.logsigmoid(margin(tokens, mask)).mean() / 2
    loss.backward()
    if step % 2:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
    if step % 40 == 39:
        model.eval()
        with torch.no_grad():
            right = torch.cat([margin(*batch) > 0 for batch in held])
        print(step, right.float().mean().item())
        model.train()
