"""Hugging Face's Trainer: BERT's masked words, batches grouped by length, dropout, float16, accumulation, evaluation and saves."""

import tempfile

import torch
from common import lengths
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments


class Words(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.lengths = lengths(count, seed, mean=4.8, top=512)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        draws = torch.Generator().manual_seed(number)
        return {"input_ids": torch.randint(5, 30000, (self.lengths[number],), generator=draws), "length": self.lengths[number]}


def collate(rows):
    longest = -(-max(len(row["input_ids"]) for row in rows) // 8) * 8
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, : len(row["input_ids"])] = row["input_ids"]
    hidden = (torch.rand(ids.shape) < 0.15) & (ids > 0)
    return {
        "input_ids": ids.masked_fill(hidden, 4),
        "attention_mask": (ids > 0).long(),
        "labels": ids.masked_fill(~hidden, -100),
    }


Trainer(
    model=BertForMaskedLM(BertConfig(vocab_size=30000, num_hidden_layers=8, hidden_size=512, num_attention_heads=8)),
    args=TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=24,
        per_device_eval_batch_size=48,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        train_sampling_strategy="group_by_length",
        fp16=True,
        eval_strategy="steps",
        eval_steps=20,
        save_strategy="steps",
        save_steps=40,
        prediction_loss_only=True,
        report_to=[],
        seed=5,
    ),
    train_dataset=Words(1800, 1),
    eval_dataset=Words(200, 2),
    data_collator=collate,
).train()
