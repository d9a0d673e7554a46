"""PEFT's comparison of methods: Llama-3.2 3B on an L40S, settings from the JSON beside each result.

A batch of 768 tokens, where its data are cut, comes early in a run of 5,000 batches, and again when the optimizer has its states.
Batches are sorted within 20, the longest first; the cache is emptied every ten. So the run is predicted as: a usual batch, an
emptied cache, the longest batch, two that follow in its bucket, usual ones. The published speed is of tokens without padding.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.published.cases import Case

LONGEST = 768
USUAL = 210
"""train total tokens over samples: 4,198,051 of 20,000."""
LENGTHS = (USUAL, 0, LONGEST, 450, 400, USUAL, USUAL)
"""0 stands for an emptied cache."""


def read_peft(row: Mapping[str, str]) -> Case:
    name = "peft " + row["path"].rpartition("/")[2].removesuffix(".json")
    source, torch = f"github.com/huggingface/peft, {row['path']}", row["torch"]
    if "MetaMathQA" not in row["path"]:
        return Case(
            name=name,
            gpu="L40S",
            torch=torch,
            source=source,
            why_not="FLUX.2's layers are in diffusers, and its latents are not at hand",
        )
    if row["status"] != "success":
        return Case(name=name, gpu="L40S", torch=torch, source=source, why_not=f"it ended as {row['status']}")
    return Case(
        name=name,
        gpu="L40S",
        torch=torch,
        kind="peft",
        words={"path": row["path"], "lengths": list(LENGTHS), "batch": int(row["bs"])},
        steps=sum(length > 0 for length in LENGTHS),
        torch_version=".".join(torch.split("+")[0].split(".")[:2]) + "+cu130",
        units_per_step=int(row["bs"]) * USUAL,
        per_second=float(row["tps"]) if row["tps"] else 0.0,
        memory={"reserved": int(row["max"])},
        fits=True,
        source=source,
    )
