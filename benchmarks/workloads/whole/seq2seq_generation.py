"""Seq2SeqTrainer: an encoder-decoder whose evaluation generates."""

import tempfile

import torch
from shared import Sentences
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, T5Config, T5ForConditionalGeneration

torch.manual_seed(3)
config = T5Config(
    d_model=512,
    d_kv=64,
    d_ff=1536,
    num_layers=6,
    num_heads=8,
    vocab_size=32000,
    decoder_start_token_id=0,
    pad_token_id=0,
    eos_token_id=1,
)


def collate(rows):
    longest = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    return {"input_ids": tokens, "attention_mask": (tokens > 0).long(), "labels": tokens[:, : longest // 3 + 1].clone()}


args = Seq2SeqTrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=8,
    per_device_eval_batch_size=16,
    max_steps=60,
    eval_strategy="steps",
    eval_steps=30,
    predict_with_generate=True,
    generation_max_length=24,
    bf16=True,
    save_strategy="no",
    report_to=[],
    seed=3,
)
trainer = Seq2SeqTrainer(
    model=T5ForConditionalGeneration(config),
    args=args,
    train_dataset=Sentences(600, 4, longest=600),
    eval_dataset=Sentences(64, 5, longest=300),
    data_collator=collate,
)
trainer.train()
