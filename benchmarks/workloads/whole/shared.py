"""What several scripts use: sentences of many lengths, and small models of known kinds."""

import random

import torch
from torch.utils.data import Dataset


class Sentences(Dataset):
    """Token sequences whose lengths spread as those of instructions do."""

    def __init__(self, count, seed, *, shortest=16, longest=1500, middle=180, vocab=32000):
        draw = random.Random(seed)
        self.lengths = [max(shortest, min(longest, int(draw.lognormvariate(0, 0.8) * middle))) for _ in range(count)]
        self.vocab = vocab

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(5, self.vocab, (self.lengths[index],), generator=generator)


def collate(rows):
    longest = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for number, row in enumerate(rows):
        tokens[number, : len(row)], mask[number, : len(row)] = row, 1
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}


def qwen(layers=6, hidden=768, vocab=32000):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=hidden,
        intermediate_size=2304,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        vocab_size=vocab,
        use_cache=False,
    )
    return Qwen2ForCausalLM(config)
