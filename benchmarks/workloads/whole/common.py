import random

import torch


def lengths(n, seed=0, mean=5.2, sigma=0.7, top=1900):
    r = random.Random(seed)
    return [max(8, min(top, int(r.lognormvariate(mean, sigma)))) for _ in range(n)]


class Text(torch.utils.data.Dataset):
    """Sentences of very different lengths, as instruction data are."""

    def __init__(self, n, seed=0, vocab=32000, **kw):
        self.l, self.vocab = lengths(n, seed, **kw), vocab

    def __len__(self):
        return len(self.l)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        x = torch.randint(3, self.vocab, (self.l[i],), generator=g)
        return {"input_ids": x, "labels": x.clone()}


def pad(rows):
    n = max(len(r["input_ids"]) for r in rows)
    ids = torch.zeros(len(rows), n, dtype=torch.long)
    lab = torch.full((len(rows), n), -100)
    att = torch.zeros(len(rows), n, dtype=torch.long)
    for k, r in enumerate(rows):
        m = len(r["input_ids"])
        ids[k, :m] = r["input_ids"]
        lab[k, :m] = r["labels"]
        att[k, :m] = 1
    return {"input_ids": ids, "labels": lab, "attention_mask": att}


def llama(layers=6, hidden=1024, vocab=32000):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden,
            intermediate_size=2816,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=8,
            vocab_size=vocab,
            max_position_embeddings=4096,
            use_cache=False,
        )
    )
