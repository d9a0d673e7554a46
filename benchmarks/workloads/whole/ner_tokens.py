"""Hugging Face's Trainer: names in sentences, grouped by length, bfloat16, accumulated, evaluated every 30 steps, the best kept."""

import tempfile

import torch
from common import lengths
from transformers import ElectraConfig, ElectraForTokenClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        self.lengths = lengths(count, seed, mean=4.0, sigma=0.6, top=384)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, number):
        draws = torch.Generator().manual_seed(number)
        words = torch.randint(5, 30000, (self.lengths[number],), generator=draws)
        return {"input_ids": words.tolist(), "length": len(words)}


def collate(rows):
    longest = -(-max(row["length"] for row in rows) // 8) * 8
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    labels = torch.full((len(rows), longest), -100)
    for place, row in enumerate(rows):
        ids[place, : row["length"]] = torch.tensor(row["input_ids"])
        labels[place, : row["length"]] = ids[place, : row["length"]] % 9
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=24,
    per_device_eval_batch_size=96,
    gradient_accumulation_steps=2,
    num_train_epochs=3,
    eval_strategy="steps",
    eval_steps=30,
    save_steps=30,
    save_total_limit=1,
    load_best_model_at_end=True,
    label_smoothing_factor=0.1,
    remove_unused_columns=False,
    bf16=True,
    report_to=[],
    seed=11,
)
config = ElectraConfig(vocab_size=30000, embedding_size=256, hidden_size=512, num_hidden_layers=10, num_attention_heads=8)
config.intermediate_size, config.num_labels = 2048, 9
model = ElectraForTokenClassification(config)
Trainer(
    model=model, args=arguments, train_dataset=Sentences(2000, 4), eval_dataset=Sentences(500, 5), data_collator=collate
).train()
