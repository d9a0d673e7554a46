"""What tracking costs where a step waits for the host: bare steps and tracked ones take turns, each time under a new tracker.

    python benchmarks/recording/turns_on_gpu.py              # on a GPU, about two minutes: results/turns_on_gpu.json and .md
    python benchmarks/recording/turns_on_gpu.py bert swin    # some of them; the others stay as they are
    python benchmarks/recording/turns_on_gpu.py --out FILE   # writes FILE in place of the results

Models with many small modules and operators, and small batches. A round is six bare steps, then six under ``memfit.track``; its
slowdown is the time of the tracked ones over that of the bare ones. The first round is of a model that no recording has seen; the
median is that of all rounds.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import torch

import memfit

RESULTS = pathlib.Path(__file__).parents[1] / "results"
ROUNDS, STEPS = 6, 6


def _tokens(vocab: int, batch: int = 4, length: int = 64) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, length), device="cuda")


def bert():
    from transformers import BertConfig, BertForMaskedLM

    model, tokens = BertForMaskedLM(BertConfig()), _tokens(30000)
    return model, lambda net: net(input_ids=tokens, labels=tokens).loss


def modernbert():
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = ModernBertConfig(num_hidden_layers=12, attn_implementation="sdpa", reference_compile=False)
    model, tokens = ModernBertForMaskedLM(config), _tokens(30000)
    return model, lambda net: net(input_ids=tokens, labels=tokens).loss


def gemma3():
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        hidden_size=512, intermediate_size=1536, num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=4, head_dim=64,
        vocab_size=32000, use_cache=False,
    )  # fmt: skip
    model, tokens = Gemma3ForCausalLM(config), _tokens(32000)
    return model, lambda net: net(input_ids=tokens, labels=tokens).loss


def swin():
    from transformers import SwinConfig, SwinForImageClassification

    model, images = SwinForImageClassification(SwinConfig(num_labels=100)), torch.randn(4, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 100, (4,), device="cuda")
    return model, lambda net: net(pixel_values=images, labels=labels).loss


def convnext():
    from transformers import ConvNextConfig, ConvNextForImageClassification

    model, images = ConvNextForImageClassification(ConvNextConfig(num_labels=100)), torch.randn(4, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 100, (4,), device="cuda")
    return model, lambda net: net(pixel_values=images, labels=labels).loss


def conformer():
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerModel

    config = Wav2Vec2ConformerConfig(hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536)
    model, sound = Wav2Vec2ConformerModel(config), torch.randn(2, 32000, device="cuda")
    return model, lambda net: net(sound).last_hidden_state.pow(2).mean()


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    model, tokens = T5ForConditionalGeneration(T5Config(num_layers=8, use_cache=False, decoder_start_token_id=0)), _tokens(32000)
    return model, lambda net: net(input_ids=tokens, labels=tokens).loss


MODELS: dict[str, Callable] = {each.__name__: each for each in (bert, modernbert, gemma3, swin, convnext, conformer, t5)}


def seconds_of(step: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def take_turns(name: str) -> dict:
    torch.manual_seed(0)
    model, loss_of = MODELS[name]()
    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds_of(step)
    rounds, notes = [], []
    for _ in range(ROUNDS):
        bare = seconds_of(step)
        with memfit.track(model, optimizer) as tracker:
            tracked = seconds_of(step)
        rounds.append((bare, tracked))
        notes = list(tracker.ledger.info.notes)
    slowdowns = [tracked / bare for bare, tracked in rounds]
    return {
        "bare_ms": 1000 * statistics.median(bare for bare, _ in rounds) / STEPS,
        "first": slowdowns[0],
        "slowdown": statistics.median(slowdowns),
        "rounds": slowdowns,
        "notes": notes,
    }


def table(rows: dict[str, dict]) -> str:
    lines = [
        "Turns of six steps, bare and under a new tracker each time; `python benchmarks/recording/turns_on_gpu.py`.",
        "",
        "| model | bare step | slowdown, median of the rounds | of the first round |",
        "|---|---|---|---|",
    ]
    lines += [f"| {name} | {row['bare_ms']:.1f} ms | {row['slowdown']:.2f} | {row['first']:.2f} |" for name, row in rows.items()]
    all_of = [row["slowdown"] for row in rows.values()]
    return "\n".join([*lines, "", f"Slowdown: {statistics.median(all_of):.2f} in the median, {max(all_of):.2f} at worst."]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MODELS, []])
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS / "turns_on_gpu.json")
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.names or MODELS:
        try:
            rows[name] = take_turns(name)
        except Exception as error:  # the others are measured all the same
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
        print(
            f"{name}: {rows[name]['slowdown']:.2f}, the first {rows[name]['first']:.2f}, bare {rows[name]['bare_ms']:.1f} ms",
            flush=True,
        )
        torch.cuda.empty_cache()
    arguments.out.with_suffix(".md").write_text(table(rows))


if __name__ == "__main__":
    main()
