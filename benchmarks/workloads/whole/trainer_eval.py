"""Hugging Face's Trainer as people call it: evaluation and saving inside the epoch, logits piled up on the GPU."""

import tempfile

from common import Text, llama, pad
from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    per_device_train_batch_size=4,
    per_device_eval_batch_size=16,
    num_train_epochs=1,
    eval_strategy="steps",
    eval_steps=40,
    save_steps=60,
    bf16=True,
    logging_steps=20,
    report_to=[],
    seed=1,
    max_steps=90,
)
t = Trainer(
    model=llama(),
    args=args,
    train_dataset=Text(600, 1),
    eval_dataset=Text(96, 2, top=400),
    data_collator=pad,
    compute_metrics=lambda p: {"n": len(p.predictions)},
)
t.train()
