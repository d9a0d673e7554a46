"""What it costs to know the data of masks and token ids, side by side in one run, on the host.

    python benchmarks/speed/known_data.py

Steps of a small Hugging Face Llama, with token ids and an attention mask that come from the host in every step, predicted with
different limits on how many elements are followed (``LARGEST_KNOWN`` in ``phantom/values/host_data.py``). The limits take turns, so
that a busy machine disturbs all of them alike. Writes ``results/known_data.md``.
"""

from __future__ import annotations

import pathlib
import time

import torch
import transformers

import memfit
from memfit.phantom.values import host_data

BENCHMARKS = pathlib.Path(__file__).parents[1]
LIMITS = (64, 2**12, 2**16, 2**18, 2**20, 2**22, 2**24)
BATCHES = ((8, 512), (32, 2048), (64, 8192), (256, 8192))
ROUNDS, STEPS = 3, 3


def seconds_of_a_step(batch: int, length: int, limit: int) -> float:
    host_data.LARGEST_KNOWN = limit
    seconds = []

    def build():
        config = transformers.LlamaConfig(
            hidden_size=512, intermediate_size=1408, num_hidden_layers=16, num_attention_heads=8, vocab_size=32000
        )
        model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(0, 32000, (batch, length))
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, : length // 2] = 0

        def step():
            start = time.thread_time()
            given = tokens.to("cuda")
            model(input_ids=given, labels=given, attention_mask=mask.to("cuda")).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.thread_time() - start)

        return step

    memfit.predict(build, steps=STEPS)
    return min(seconds[1:])


def main() -> None:
    usual = host_data.LARGEST_KNOWN
    lines = [
        f"torch {torch.__version__}, a predicted step of a Llama of 16 layers, in seconds of one core; larger limits against 64;",
        f"fastest of {ROUNDS * (STEPS - 1)} steps: `python benchmarks/speed/known_data.py`. The limit in use is {usual:,}.",
        "",
        "| batch | elements | seconds, limit 64 | " + " | ".join(f"{limit:,}" for limit in LIMITS[1:]) + " |",
        "|---" * (2 + len(LIMITS)) + "|",
    ]
    for batch, length in BATCHES:
        rounds = [[seconds_of_a_step(batch, length, limit) for limit in LIMITS] for _ in range(ROUNDS)]
        first, *others = (min(times[i] for times in rounds) for i in range(len(LIMITS)))
        ratios = [other / first for other in others]
        lines.append(f"| {batch} x {length} | {batch * length:,} | {first:.2f} | " + " | ".join(f"{r:.2f}" for r in ratios) + " |")
        print(lines[-1], flush=True)
    (BENCHMARKS / "results" / "known_data.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
