"""A recurrent model on sentences that are sorted into buckets, with a long one now and then."""

import torch
from shared import Sentences
from torch import nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(13)
data = Sentences(960, 14, longest=900)
order = sorted(range(len(data)), key=data.lengths.__getitem__)
batches = [order[first : first + 12] for first in range(0, len(order), 12)]
batches = [batches[number * 37 % len(batches)] for number in range(len(batches))]


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32000, 512)
        self.lstm = nn.LSTM(512, 768, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(1536, 64)

    def forward(self, tokens):
        return self.head(self.lstm(self.embed(tokens))[0])


model = Tagger().cuda()
optimizer = torch.optim.Adam(model.parameters())
for batch in batches:
    tokens = pad_sequence([data[index] for index in batch], batch_first=True).cuda()
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), (tokens % 64).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
