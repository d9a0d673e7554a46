"""Reinforcement learning: answers are sampled with a cache, a frozen reference rates them, the policy is updated twice."""

import random

import torch
from common import llama

NEW_TOKENS = 24


def log_probabilities(model, tokens):
    logits = model(tokens).logits[:, -NEW_TOKENS - 1 : -1].float()
    return torch.gather(logits.log_softmax(-1), 2, tokens[:, -NEW_TOKENS:, None]).squeeze(-1)


def main():
    torch.manual_seed(0)
    random.seed(0)
    policy, reference = llama(layers=4, hidden=768).cuda(), llama(layers=4, hidden=768).cuda().eval()
    policy.config.use_cache = True
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)
    for _ in range(16):
        prompts = torch.randint(3, 32000, (8, random.randint(40, 200))).cuda()
        with torch.no_grad():
            tokens = policy.generate(
                prompts,
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                do_sample=True,
                num_return_sequences=4,
                pad_token_id=0,
            )
            before = log_probabilities(reference, tokens)
        for _ in range(2):
            now = log_probabilities(policy, tokens)
            advantages = torch.randn(len(tokens), 1, device="cuda")
            loss = (-(now * advantages) + 0.05 * (now - before) ** 2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


main()
