"""Hugging Face's Trainer inside a function, sentences grouped by length, gradients added up, a best model that is loaded again."""

import tempfile

from common import Text, llama, pad
from transformers import Trainer, TrainingArguments


def main():
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        max_steps=60,
        eval_strategy="steps",
        eval_steps=20,
        save_steps=20,
        load_best_model_at_end=True,
        prediction_loss_only=True,
        bf16=True,
        optim="adamw_torch_fused",
        report_to=[],
    )
    Trainer(model=llama(layers=8), args=arguments, train_dataset=Text(500, 3), eval_dataset=Text(60, 4), data_collator=pad).train()


main()
