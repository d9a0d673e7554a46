"""Captions of pictures: a ResNet that is frozen but for its last stage, an LSTM over packed words, and words chosen one by one."""

import random

import torch
import torchvision
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

torch.manual_seed(31)
draw = random.Random(31)
VOCAB = 9000


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        resnet = torchvision.models.resnet50(weights=None)
        self.sees = nn.Sequential(*list(resnet.children())[:-1])
        for parameter in list(self.sees.parameters())[:-30]:
            parameter.requires_grad_(False)
        self.project = nn.Linear(2048, 512)
        self.embed = nn.Embedding(VOCAB, 512, padding_idx=0)
        self.lstm = nn.LSTM(512, 1024, num_layers=2, batch_first=True, dropout=0.3)
        self.head = nn.Linear(1024, VOCAB)

    def forward(self, pictures, words, lengths):
        seen = self.project(self.sees(pictures).flatten(1))
        steps = torch.cat((seen.unsqueeze(1), self.embed(words[:, :-1])), 1)
        packed = pack_padded_sequence(steps, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.lstm(packed)[0].data)

    @torch.no_grad()
    def caption(self, pictures, longest):
        step = self.project(self.sees(pictures).flatten(1)).unsqueeze(1)
        state, words = None, []
        for _ in range(longest):
            found, state = self.lstm(step, state)
            word = self.head(found[:, -1]).argmax(-1)
            words.append(word)
            step = self.embed(word).unsqueeze(1)
        return torch.stack(words, 1)


def batch(size):
    lengths = torch.tensor([draw.randint(6, 40) for _ in range(size)])
    words = torch.zeros(size, int(lengths.max()), dtype=torch.long)
    for row, length in enumerate(lengths.tolist()):
        words[row, :length] = torch.randint(1, VOCAB, (length,))
    return torch.randn(size, 3, 224, 224).cuda(), words.cuda(), lengths


model = Captioner().cuda()
optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=3e-4)
for step in range(60):
    model.train()
    pictures, words, lengths = batch(32)
    targets = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False).data
    loss = nn.functional.cross_entropy(model(pictures, words, lengths), targets)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(model.parameters(), 5.0)
    optimizer.step()
    if step % 30 == 29:
        model.eval()
        print(step, loss.item(), model.caption(batch(64)[0], 20)[0, :5].tolist())
