"""Hugging Face's Trainer: a BERT that classifies sentences of many lengths, float32, evaluated with metrics after each epoch."""

import tempfile

import torch
from common import lengths
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Reviews(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.lengths = lengths(count, seed, mean=4.6, top=512)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        draws = torch.Generator().manual_seed(number)
        return torch.randint(5, 20000, (self.lengths[number],), generator=draws), number % 4


def collate(rows):
    longest = max(len(words) for words, _ in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for row, (words, _) in enumerate(rows):
        ids[row, : len(words)] = words
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": torch.tensor([label for _, label in rows])}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=16,
    per_device_eval_batch_size=64,
    num_train_epochs=2,
    eval_strategy="epoch",
    save_strategy="epoch",
    max_grad_norm=1.0,
    report_to=[],
    seed=3,
)
model = BertForSequenceClassification(BertConfig(vocab_size=20000, num_hidden_layers=8, num_labels=4))
Trainer(
    model=model,
    args=arguments,
    train_dataset=Reviews(640, 1),
    eval_dataset=Reviews(300, 2),
    data_collator=collate,
    compute_metrics=lambda said: {"accuracy": (said.predictions.argmax(-1) == said.label_ids).mean()},
).train()
