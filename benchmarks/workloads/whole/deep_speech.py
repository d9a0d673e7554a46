"""Speech to letters: convolutions over spectrograms of many lengths, a GRU over what they give, CTC, decoded after each epoch."""

import torch
from common import lengths
from torch import nn
from torch.utils.data import DataLoader


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20, inplace=True),
        )
        self.rnn = nn.GRU(32 * 20, 512, num_layers=3, bidirectional=True, batch_first=True, dropout=0.1)
        self.out = nn.Linear(1024, 29)

    def forward(self, x):
        x = self.convolutions(x[:, None]).flatten(1, 2).transpose(1, 2)
        return self.out(self.rnn(x)[0]).log_softmax(-1)


class Speech(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.lengths = [200 + number for number in lengths(count, seed, mean=6.0, top=1400)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        return torch.randn(80, self.lengths[number], generator=torch.Generator().manual_seed(number))


def collate(rows):
    longest = max(row.shape[1] for row in rows)
    batch = torch.zeros(len(rows), 80, longest)
    for number, row in enumerate(rows):
        batch[number, :, : row.shape[1]] = row
    return batch, torch.tensor([row.shape[1] // 2 for row in rows])


torch.manual_seed(9)
model = Recognizer().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.CTCLoss(zero_infinity=True)
for _ in range(2):
    model.train()
    for sounds, steps in DataLoader(Speech(320, 4), batch_size=8, shuffle=True, collate_fn=collate):
        letters = torch.randint(1, 29, (len(sounds), 40)).cuda()
        said = model(sounds.cuda()).transpose(0, 1)
        loss = criterion(said, letters, steps.clamp(max=said.shape[0]), torch.full((len(sounds),), 40))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for sounds, _ in DataLoader(Speech(48, 5), batch_size=16, collate_fn=collate):
            model(sounds.cuda()).argmax(-1).cpu()
