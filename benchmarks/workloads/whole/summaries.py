"""T5 learns summaries: encoder and decoder of many lengths, Adafactor, and beams every 30 steps on held back texts."""

import torch
from shared import Sentences, collate
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor


class Texts(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.texts = Sentences(count, seed, longest=700, middle=220)
        self.summaries = Sentences(count, seed + 50, shortest=6, longest=90, middle=30)

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return self.texts[index], self.summaries[index]


def batched(rows):
    texts, summaries = collate([row[0] for row in rows]), collate([row[1] for row in rows])
    return {"input_ids": texts["input_ids"], "attention_mask": texts["attention_mask"], "labels": summaries["labels"]}


torch.manual_seed(12)
config = T5Config(
    vocab_size=32100,
    d_model=512,
    d_kv=64,
    d_ff=1536,
    num_layers=8,
    num_heads=8,
    feed_forward_proj="gated-gelu",
    decoder_start_token_id=0,
)
model = T5ForConditionalGeneration(config).cuda()
optimizer = Adafactor(model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False)
train = DataLoader(Texts(960, 3), batch_size=10, shuffle=True, collate_fn=batched, num_workers=2, drop_last=True)
held = DataLoader(Texts(24, 77), batch_size=8, collate_fn=batched)
for step, batch in enumerate(train):
    batch = {name: value.cuda() for name, value in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 30 == 29:
        model.eval()
        for batch in held:
            written = model.generate(
                input_ids=batch["input_ids"].cuda(), attention_mask=batch["attention_mask"].cuda(), num_beams=3, max_new_tokens=24
            )
        print(step, loss.item(), tuple(written.shape))
        model.train()
