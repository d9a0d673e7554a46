"""Two towers for retrieval with many negatives: representations first without a graph, piece by piece, then each piece again with
the gradients of the loss; an index of all passages at the end."""

import random

import torch
from torch.nn import functional as F
from transformers import BertConfig, BertModel

torch.manual_seed(2)
draw = random.Random(7)
config = BertConfig(vocab_size=25000, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048)
questions, passages = BertModel(config).cuda(), BertModel(config).cuda()
optimizer = torch.optim.AdamW([*questions.parameters(), *passages.parameters()], lr=2e-5)


def texts(count, low, high):
    longest = draw.randint(low, high)
    ids = torch.randint(5, 25000, (count, longest))
    mask = torch.arange(longest)[None] < torch.randint(low // 2, longest + 1, (count, 1))
    return ids.cuda(), mask.long().cuda()


def represent(tower, ids, mask):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = tower(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = mask[..., None].float()
    return F.normalize((hidden.float() * weights).sum(1) / weights.sum(1), dim=-1)


for _step in range(40):
    sides = [(questions, *texts(192, 12, 40)), (passages, *texts(192, 100, 220))]
    with torch.no_grad():
        kept = [
            torch.cat([represent(tower, i, m) for i, m in zip(ids.split(32), mask.split(32), strict=True)])
            for tower, ids, mask in sides
        ]
    leaves = [part.detach().requires_grad_() for part in kept]
    scores = leaves[0] @ leaves[1].T / 0.05
    loss = F.cross_entropy(scores, torch.arange(len(scores), device="cuda"))
    loss.backward()
    for (tower, ids, mask), leaf in zip(sides, leaves, strict=True):
        for i, m, gradient in zip(ids.split(32), mask.split(32), leaf.grad.split(32), strict=True):
            (represent(tower, i, m) * gradient).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

passages.eval()
index = []
with torch.no_grad():
    for _ in range(30):
        index.append(represent(passages, *texts(256, 120, 256)))
index = torch.cat(index)
found = (index[:64] @ index.T).topk(20, dim=-1)
print(loss.item(), found.indices.shape)
