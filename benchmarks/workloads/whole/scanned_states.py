"""Mamba by transformers' own loops, sentences of many lengths bucketed by tokens, an epoch with validation, then text with
its cache."""

import random

import torch
from shared import Sentences, collate
from transformers import MambaConfig, MambaForCausalLM

torch.manual_seed(0)
model = MambaForCausalLM(MambaConfig(vocab_size=24000, hidden_size=512, num_hidden_layers=6, state_size=16)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
data, draw = Sentences(420, 31, longest=420, middle=90, vocab=24000), random.Random(6)


def batches(budget):
    order = sorted(range(len(data)), key=lambda n: data.lengths[n] + draw.random())
    groups, kept = [], []
    for number in order:
        if kept and (len(kept) + 1) * data.lengths[number] > budget:
            groups.append(kept)
            kept = []
        kept.append(number)
    groups.append(kept)
    draw.shuffle(groups)
    for group in groups:
        yield {name: part.cuda() for name, part in collate([data[n] for n in group]).items()}


for epoch in range(2):
    model.train()
    for batch in batches(1600):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        print(epoch, sum(model(**batch).loss.item() for batch in batches(3200)))
model.generate(torch.randint(5, 24000, (4, 48), device="cuda"), max_new_tokens=40, do_sample=True)
