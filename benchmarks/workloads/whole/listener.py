"""A listener that attends while it writes: an LSTM cell for each letter, utterances of many lengths, teacher forcing, then
greedy reading."""

import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(2)
draw = random.Random(5)
LETTERS, WIDTH = 64, 512


class Listener(nn.Module):
    def __init__(self):
        super().__init__()
        self.frames = nn.Sequential(nn.Linear(80, WIDTH), nn.LayerNorm(WIDTH), nn.GELU())
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 8, 2048, batch_first=True, norm_first=True), 6)
        self.letters, self.cell = nn.Embedding(LETTERS, WIDTH), nn.LSTMCell(2 * WIDTH, WIDTH)
        self.keys, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, LETTERS)

    def forward(self, sounds, letters=None, steps=0):
        heard = self.encoder(self.frames(sounds))
        keys, state, written = self.keys(heard), None, []
        context, last = heard.mean(1), torch.zeros(len(sounds), dtype=torch.long, device=sounds.device)
        for number in range(steps if letters is None else letters.shape[1]):
            state = self.cell(torch.cat([self.letters(last), context], 1), state)
            weights = torch.softmax((keys @ state[0].unsqueeze(2)).squeeze(2) / WIDTH**0.5, 1)
            context = (weights.unsqueeze(1) @ heard).squeeze(1)
            said = self.out(torch.cat([state[0], context], 1))
            written.append(said)
            last = said.argmax(1) if letters is None else letters[:, number]
        return torch.stack(written, 1)


def batch():
    lengths = [draw.randint(60, 700) for _ in range(24)]
    sounds = pad_sequence([torch.randn(length, 80) for length in lengths], batch_first=True)
    letters = pad_sequence([torch.randint(1, LETTERS, (length // 12,)) for length in lengths], batch_first=True)
    return sounds.cuda(), letters.cuda()


model = Listener().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
for step in range(70):
    model.train()
    sounds, letters = batch()
    loss = F.cross_entropy(model(sounds, letters).flatten(0, 1), letters.flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    if step % 25 == 24:
        model.eval()
        with torch.no_grad():
            model(batch()[0], steps=60)
        print(step, loss.item())
