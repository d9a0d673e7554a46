"""Preference training by hand in a Trainer: a frozen reference model, chosen and rejected answers in one batch."""

import tempfile

import torch
import torch.nn.functional as F
from common import lengths, llama, pad
from transformers import Trainer, TrainingArguments


class Pairs(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.lengths = lengths(2 * count, seed, top=900)

    def __len__(self):
        return len(self.lengths) // 2

    def __getitem__(self, number):
        draws = torch.Generator().manual_seed(number)
        answers = [torch.randint(3, 32000, (self.lengths[2 * number + side],), generator=draws) for side in range(2)]
        return [{"input_ids": answer, "labels": answer.clone()} for answer in answers]


def collate(rows):
    return pad([side for pair in rows for side in pair])


def scores(model, batch):
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1]
    labels = batch["labels"][:, 1:]
    said = logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return (said * (labels != -100)).sum(-1)


class Preferences(Trainer):
    reference = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with torch.no_grad():
            before = scores(self.reference, inputs)
        now = scores(model, inputs)
        gain = (now - before)[0::2] - (now - before)[1::2]
        loss = -F.logsigmoid(0.1 * gain).mean()
        return (loss, {"gain": gain}) if return_outputs else loss


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    max_steps=40,
    bf16=True,
    remove_unused_columns=False,
    save_strategy="no",
    report_to=[],
)
trainer = Preferences(model=llama(layers=4), args=arguments, train_dataset=Pairs(200, 7), data_collator=collate)
trainer.reference = llama(layers=4).cuda().bfloat16().eval().requires_grad_(False)
trainer.train()
