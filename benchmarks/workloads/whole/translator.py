"""torch.nn.Transformer translates: sentences by length, masks of padding, label smoothing, a warm-up, greedy translations
between."""

import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

VOCAB, WIDTH = 24000, 512
torch.manual_seed(3)
draw = random.Random(2)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Embedding(512, WIDTH)
        self.transformer = nn.Transformer(WIDTH, 8, 5, 5, 2048, dropout=0.1, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def embed(self, tokens):
        return self.words(tokens) * WIDTH**0.5 + self.places(torch.arange(tokens.shape[1], device=tokens.device))

    def forward(self, source, target):
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device, dtype=torch.bool)
        out = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            src_key_padding_mask=source == 0,
            tgt_key_padding_mask=target == 0,
            memory_key_padding_mask=source == 0,
        )
        return self.head(out)


lengths = sorted(min(200, max(4, int(draw.lognormvariate(3.2, 0.5)))) for _ in range(3200))
batches = [lengths[start : start + 32] for start in range(0, len(lengths), 32)]
draw.shuffle(batches)


def sentences(sizes):
    source = pad_sequence([torch.randint(1, VOCAB, (size,)) for size in sizes], batch_first=True)
    target = pad_sequence([torch.randint(1, VOCAB, (size + draw.randint(1, 6),)) for size in sizes], batch_first=True)
    return source.cuda(), target.cuda()


model = Translator().cuda()
optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9)
warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: WIDTH**-0.5 * min((step + 1) ** -0.5, (step + 1) * 400**-1.5))
judge = nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.1)
for number, sizes in enumerate(batches):
    model.train()
    source, target = sentences(sizes)
    loss = judge(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warm_up.step()
    if number % 50 == 49:
        model.eval()
        with torch.no_grad():
            source, _ = sentences([40] * 16)
            written = torch.ones(16, 1, dtype=torch.long, device="cuda")
            for _ in range(30):
                written = torch.cat((written, model(source, written)[:, -1:].argmax(-1)), 1)
        print(number, loss.item(), tuple(written.shape))
