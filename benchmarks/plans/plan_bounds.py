"""Bounds of the search against predictions of configurations drawn at random: none may be above.

    python benchmarks/plans/plan_bounds.py 60 --seed 1        60 pairs; writes results/plan_bounds.md

Each pair is a configuration of a search's own candidates, and another that does less (``siblings.py``). Both are predicted, of a
model cut to a few layers. Four things are compared: the time and the memory that a configuration needs at least by its sizes, the
time that it takes at least by what was predicted of the one that does less, and the memory that it needs by one that keeps less. A
pipeline's memory is left out where fewer of its microbatches are predicted at first: its last rank keeps the output of each.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memfit.job import Cell, Configuration, PredictOptions, Subject
from memfit.models.config import MODELS
from memfit.plan.search.candidate import Candidate, Evaluated
from memfit.plan.search.jobs import job_of, shortened_of
from memfit.plan.search.siblings import does_no_less
from memfit.plan.search.space import Space
from memfit.predict.cells import work

RESULTS = Path(__file__).parents[1] / "results"
LAYERS = 4
SEARCHES = (
    ("llama3-8b", 8, "H100-80GB", (2048, 8192)),
    ("llama3-70b", 64, "H100-80GB", (4096, 8192)),
    ("qwen3-30b-a3b", 64, "H100-80GB", (4096, 8192)),
    ("qwen3-8b", 8, "A100-80GB", (1024, 4096)),
    ("mixtral-8x7b", 32, "H200", (2048, 4096)),
    ("gpt2-xl", 4, "A100-40GB", (1024,)),
)


@dataclass(frozen=True)
class Pair:
    less: Candidate
    more: Candidate


def draw(number: int, generator: random.Random) -> Iterator[Pair]:
    """Pairs of one search after the other."""
    spaces: dict[tuple[str, int], list[Candidate]] = {}
    for place in range(number):
        model, world_size, gpu, lengths = SEARCHES[place % len(SEARCHES)]
        key = model, generator.choice(lengths)
        if key not in spaces:
            subject, options = Subject.of("", model, ""), PredictOptions(gpu=gpu, world_size=world_size)
            space = Space(subject=subject, options=options, seq=key[1], global_batch=world_size * generator.choice((1, 2)))
            asked = (each for each in space.candidates() if each.recipe.pp <= 2)
            spaces[key] = [Candidate.of(each) for each in asked]
        while True:
            more = generator.choice(spaces[key])
            others = [each for each in spaces[key] if each.group == more.group and each is not more]
            less = [each for each in others if does_no_less(more.work, each.work)]
            if less:
                yield Pair(generator.choice(less), more)
                break


def predict(job: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own, which may have others: each rank of a pipeline is predicted in one."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    child = fork.Process(target=lambda: sender.send(work(job)))
    child.start()
    answer: dict[str, Any] = receiver.recv()
    child.join()
    return answer


def evaluated(candidate: Candidate, answer: dict[str, Any]) -> Evaluated:
    return Evaluated(candidate=candidate, cell=Cell.of(candidate.asked, answer))


def words(asked: Configuration) -> str:
    recipe = asked.recipe
    degrees = [f"{name} {getattr(recipe, name)}" for name in ("tp", "pp", "cp", "ep", "microbatches") if getattr(recipe, name) > 1]
    chosen = (recipe.model, asked.gpu, str(asked.world_size), recipe.strategy, f"seq {recipe.seq}", *degrees)
    return ", ".join((*chosen, recipe.schedule, recipe.checkpointing, f"compile {recipe.compile}")).replace(", ,", ",")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for model, *_ in SEARCHES:
        MODELS[model] = replace(MODELS[model], layers=LAYERS)
    pairs = list(draw(arguments.number, random.Random(arguments.seed)))
    failed, times, carried, memory, kept = 0, [], [], [], []
    for pair in pairs:
        less, more = (evaluated(each, predict(job_of(each.asked, is_final=False))) for each in (pair.less, pair.more))
        for each in (less, more):
            if each.seconds is None or each.cell.figures is None:
                failed += 1
                print(words(each.candidate.asked), each.cell.error[:100])
                continue
            times.append((each.candidate.least_seconds / each.seconds, words(each.candidate.asked)))
            if each.candidate.asked.recipe.pp == 1 or not shortened_of(each.candidate.asked, is_final=False):
                memory.append((each.candidate.least_bytes / each.cell.figures.peak_allocated, words(each.candidate.asked)))
        if less.seconds and more.seconds:
            said = f"{words(pair.more.asked)} / {words(pair.less.asked)}"
            carried.append((less.bounds(pair.more) / more.seconds, said))
        kept += [
            (saving.bounds_bytes(keeping.candidate) / keeping.cell.figures.peak_allocated, words(keeping.candidate.asked))
            for saving, keeping in ((less, more), (more, less))
            if keeping.cell.figures is not None and not keeping.is_shortened and saving.bounds_bytes(keeping.candidate)
        ]
        print(len(carried), *(f"{max(found)[0]:.3f}" for found in (times, memory, carried) if found), flush=True)
        found = {"time by sizes": times, "memory by sizes": memory}
        write(arguments, failed, found | {"time by one that does less": carried, "memory by one that keeps less": kept})


def write(arguments: argparse.Namespace, failed: int, ratios: dict[str, list[tuple[float, str]]]) -> None:
    """After each pair: it may be stopped."""
    rows = []
    for name, found in ratios.items():
        shares = sorted(found, reverse=True)
        if shares:
            above, middle = sum(share > 1 for share, _ in shares), shares[len(shares) // 2][0]
            rows.append(f"| {name} | {len(shares)} | {above} | {shares[0][0]:.3f} | {middle:.3f} | {shares[0][1]} |")
    lines = [
        f"`python benchmarks/plans/plan_bounds.py {arguments.number} --seed {arguments.seed}`, models of {LAYERS} layers.",
        "Each bound is given as a share of what is predicted.",
        "",
        f"{failed} predictions failed.",
        "",
        "| bound | compared | above the prediction | highest share | median share | the highest is of |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
    ]
    (RESULTS / "plan_bounds.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
