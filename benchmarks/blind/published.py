"""torchtitan's published table for H100s with 96 GB, predicted with today's torchtitan.

    python benchmarks/blind/published.py                 # all rows: results/published.json and results/published.md
    python benchmarks/blind/published.py 8b_8            # some of them; --table writes the table again

The figures are the most memory reserved in December 2024, from torchtitan's benchmarks/llama3_h100_202412_torchtitan.md, on torch
of 2024-12-23. Today's software is not that of then: the table says what differs, and there is no bar.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.blind.torchtitan_runs import BATCH, MEASURED_BEFORE, PP, SCHEDULE, TENSORWISE, TP, Row, predict_row

BENCHMARKS = pathlib.Path(__file__).parents[1]
RESULTS, TABLE = BENCHMARKS / "results" / "published.json", BENCHMARKS / "results" / "published.md"
GIB = 2**30
GPU = "H100-96GB"

SELECTIVE = MEASURED_BEFORE
FULL = "--training.seq_len 8192 --activation_checkpoint.mode full"
ASYNC = "--parallelism.enable_async_tensor_parallel"
LLAMA_8B = f"--model.flavor 8B {SELECTIVE} {BATCH} 2"
LLAMA_70B = f"--model.flavor 70B {FULL} {BATCH} 16 {TP} 8 --compile.enable {TENSORWISE}"
LLAMA_405B = f"--model.flavor 405B {FULL} {TP} 8 {PP} 8 --compile.enable {TENSORWISE} {ASYNC}"

ATTENTION = "attention is cuDNN's today, torch of then preferred flash"
LOSS = "the loss is compiled, too"
KEPT = "compiled blocks keep less today: with a batch of 1 an H200 measured the 29.83 GiB allocated that are predicted"
SCALES = "scales of weights are computed once for all of them"
FUSED = "fused products of async TP, whose symmetric memory is not counted"
FEWER = "{} microbatches in place of 32, because {} never holds more at a time; two steps"
REST = "the rest is not explained"


@dataclass(frozen=True, kw_only=True)
class Published:
    row: Row
    reserved_gib: float
    differs: tuple[str, ...] = (ATTENTION,)


ROWS = {
    "8b_8": Published(row=Row(flags=LLAMA_8B), reserved_gib=82.4),
    "8b_8_compile": Published(row=Row(flags=f"{LLAMA_8B} --compile.enable"), reserved_gib=77.0, differs=(ATTENTION, LOSS, KEPT)),
    "8b_8_compile_float8": Published(
        row=Row(flags=f"{LLAMA_8B} --compile.enable {TENSORWISE}"), reserved_gib=76.8, differs=(ATTENTION, LOSS, KEPT, SCALES)
    ),
    "8b_128": Published(row=Row(flags=LLAMA_8B, world=128), reserved_gib=67.0),
    "8b_128_compile": Published(
        row=Row(flags=f"{LLAMA_8B} --compile.enable", world=128), reserved_gib=62.0, differs=(ATTENTION, LOSS, KEPT)
    ),
    "8b_128_compile_float8": Published(
        row=Row(flags=f"{LLAMA_8B} --compile.enable {TENSORWISE}", world=128),
        reserved_gib=61.8,
        differs=(ATTENTION, LOSS, KEPT, SCALES),
    ),
    "70b_256_tp8": Published(
        row=Row(flags=LLAMA_70B, world=256, hidden=8192), reserved_gib=71.9, differs=(ATTENTION, LOSS, SCALES, REST)
    ),
    "405b_512_1f1b": Published(
        row=Row(flags=f"{LLAMA_405B} {BATCH} 8", world=512, hidden=16384, steps=2),
        reserved_gib=82.5,
        differs=(ATTENTION, LOSS, SCALES, FUSED, FEWER.format(8, "1F1B"), REST),
    ),
    "405b_512_interleaved": Published(
        row=Row(flags=f"{LLAMA_405B} {BATCH} 16 {SCHEDULE} Interleaved1F1B", world=512, hidden=16384, steps=2),
        reserved_gib=72.7,
        differs=(ATTENTION, LOSS, SCALES, FUSED, FEWER.format(16, "the schedule"), REST),
    ),
}


def write_table(found: dict[str, dict]) -> None:
    lines = [
        "torchtitan's table of December 2024 (Llama 3.1 on H100s with 96 GB, sequences of 8,192 tokens, maximum reserved),",
        "predicted with torchtitan 0.2.2 for torch 2.11 by `python benchmarks/blind/published.py`. GiB; of a pipeline the first",
        "rank, which holds most microbatches.",
        "",
        "| row | published | predicted | off | allocated | fits | what differs in the software since |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, published in ROWS.items():
        ranks = [found[f"{name}@{rank}"] for rank in published.row.ranks if f"{name}@{rank}" in found]
        figures = [each for each in ranks if "peak" in each]
        if not figures:
            said = ranks[0]["error"][:100] if ranks else "not predicted"
            lines.append(f"| {name} | {published.reserved_gib} | {said} | | | | |")
            continue
        worst = max(figures, key=lambda each: each["reserved"])
        reserved, peak = worst["reserved"] / GIB, worst["peak"] / GIB
        lines.append(
            f"| {name} | {published.reserved_gib} | {reserved:.1f} | {reserved / published.reserved_gib - 1:+.1%} | {peak:.1f} "
            f"| {'yes' if worst.get('fits') else 'no'} | {'; '.join(published.differs)} |"
        )
    lines += ["", "The flags of each row, after `-m torchtitan.train`:", ""]
    lines += [f"* `{name}`, {each.row.world} ranks: `--model.name llama3 {each.row.flags}`" for name, each in ROWS.items()]
    TABLE.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", help="all if none; row@rank for one rank")
    parser.add_argument("--table", action="store_true", help="write the table of what is there, and predict nothing")
    args = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    cases = (
        []
        if args.table
        else [
            f"{name.partition('@')[0]}@{rank}"
            for name in args.rows or ROWS
            for rank in ([int(name.partition("@")[2])] if "@" in name else ROWS[name].row.ranks)
        ]
    )
    for case in cases:
        name, _, rank = case.partition("@")
        start = time.perf_counter()
        found[case] = predict_row(ROWS[name].row, int(rank), GPU)
        said = found[case].get("error") or f"{found[case]['reserved'] / GIB:.2f} GiB"
        print(f"{time.perf_counter() - start:6.1f} s  {case}: {said}", flush=True)
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    write_table(found)


if __name__ == "__main__":
    main()
