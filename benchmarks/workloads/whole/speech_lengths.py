"""Speech of many lengths: a wav2vec 2.0 trained with CTC, fp16 with a scaler, and decoded greedily after each part of the data."""

import torch
from common import lengths
from torch.utils.data import DataLoader
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

torch.manual_seed(0)
model = Wav2Vec2ForCTC(
    Wav2Vec2Config(num_hidden_layers=6, vocab_size=64, apply_spec_augment=False, ctc_loss_reduction="mean")
).cuda()
model.freeze_feature_encoder()
optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
scaler = torch.amp.GradScaler("cuda")


class Speech(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.lengths = [16000 + 200 * number for number in lengths(count, seed, mean=5.0, top=1000)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        draws = torch.Generator().manual_seed(number)
        return torch.randn(self.lengths[number], generator=draws), torch.randint(1, 64, (20,), generator=draws)


def collate(rows):
    longest = max(len(sound) for sound, _ in rows)
    sounds = torch.zeros(len(rows), longest)
    for row, (sound, _) in enumerate(rows):
        sounds[row, : len(sound)] = sound
    return sounds, torch.stack([letters for _, letters in rows])


loader = DataLoader(Speech(160, 5), batch_size=4, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(1))
for _ in range(2):
    model.train()
    for sounds, letters in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(input_values=sounds.cuda(), labels=letters.cuda()).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for sounds, _ in DataLoader(Speech(32, 6), batch_size=8, collate_fn=collate):
            model(input_values=sounds.cuda()).logits.argmax(-1).cpu()
