"""``transformers.Trainer``, with accumulation."""

from __future__ import annotations

import tempfile

import torch
import transformers


class Texts(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 2000, (256,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    transformers.set_seed(0)
    config = transformers.GPT2Config(n_embd=128, n_layer=6, n_head=4, vocab_size=2000)
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=transformers.GPT2LMHeadModel(config), args=arguments, train_dataset=Texts())
    trainer.train()
    for row in trainer.state.log_history:
        if "loss" in row:
            print(f"rank 0 loss {row['loss']}", flush=True)


if __name__ == "__main__":
    main()
