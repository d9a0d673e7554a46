"""Sentences that belong together: a BERT with means over words, many lengths, in-batch negatives, all encoded after each epoch."""

import random
import tempfile

import torch
from common import lengths
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel

torch.manual_seed(35)
draw = random.Random(35)


class Encoder(torch.nn.Module):
    """A BERT with means over words, as sentence-transformers puts it together; without a tokenizer, of which there is no file."""

    def __init__(self):
        super().__init__()
        self.bert = BertModel(BertConfig(num_hidden_layers=8), add_pooling_layer=False)

    def forward(self, ids, mask):
        found = self.bert(input_ids=ids, attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(found.dtype)
        return torch.nn.functional.normalize((found * weights).sum(1) / weights.sum(1).clamp(min=1e-9), dim=-1)


def padded(rows):
    longest = max(rows)
    mask = torch.tensor([[1] * row + [0] * (longest - row) for row in rows])
    return torch.randint(5, 30000, mask.shape) * mask, mask


def collate(pairs):
    return padded([a for a, _ in pairs]), padded([b for _, b in pairs])


model = Encoder().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
questions, passages = lengths(3000, seed=1, mean=3.2, sigma=0.5, top=200), lengths(3000, seed=2, mean=4.3, sigma=0.5, top=400)
pairs = list(zip(questions, passages, strict=True))
loader = DataLoader(pairs, batch_size=48, shuffle=True, collate_fn=collate, drop_last=True)
for epoch in range(2):
    model.train()
    for (a, a_mask), (b, b_mask) in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            first, second = model(a.cuda(), a_mask.cuda()), model(b.cuda(), b_mask.cuda())
        scores = first.float() @ second.float().T * 20
        loss = torch.nn.functional.cross_entropy(scores, torch.arange(len(scores), device="cuda"))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    corpus = sorted((b for _, b in pairs), reverse=True)
    with torch.inference_mode():
        found = torch.cat([model(*(each.cuda() for each in padded(corpus[i : i + 128]))) for i in range(0, len(corpus), 128)])
        near = (found @ found.T).topk(10).values.mean()
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file.name)
    print(epoch, loss.item(), near.item())
