"""Cells made by hand, and a function for cells that are predicted."""

from memfit.job import Cell, CellResult, Configuration
from memfit.units import GIB

CAPACITY = 80 * GIB


def figures(smallest_fit: float = 40, **others) -> CellResult:
    size = round(smallest_fit * GIB)
    made = {
        "peak_allocated": size,
        "peak_reserved": size,
        "smallest_fit": size,
        "fits": size <= CAPACITY,
        "margin": CAPACITY - size,
        "capacity": CAPACITY,
        "num_alloc_retries": 0,
        "least_gpu": "H200",
        "peak_phase": "backward",
        "breakdown": {"activation": size // 2, "parameter": size // 4},
        "assumptions": (),
        "seconds": 1.0,
    }
    return CellResult(**made | others)


def cell(smallest_fit: float | None = 40, outcome: dict | None = None, **inputs) -> Cell:
    usual = {"model": "llama3-8b", "gpu": "H100-80GB", "world_size": 8, "strategy": "full_shard", "engine": "fsdp2", "mesh": ()}
    usual |= {"batch": 1, "seq": 8192, "precision": "bf16-mixed", "checkpointing": "none", "offload": "none"}
    usual |= {"prefetch": "backward_pre", "optimizer": "adamw"}
    asked = configuration(**usual | inputs)
    if smallest_fit is None:
        return Cell(configuration=asked, error="it broke")
    return Cell(configuration=asked, figures=figures(smallest_fit, **outcome or {}))


def configuration(**inputs) -> Configuration:
    """From the flat form that a cell shows."""
    return Configuration.from_json({"inputs": inputs, "options": {}})


def build_little():
    """Found again by its file, in the process of a cell."""
    import torch

    return lambda: torch.ones(1024, device="cuda", requires_grad=True).sum().backward()
