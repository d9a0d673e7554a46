"""What the process of one cell does: predict it, and say what came out in plain values."""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

from memfit.compare.cell import Figures
from memfit.compare.job_time import job_step_seconds, step_seconds_in_parts
from memfit.compare.source_files import sources_of
from memfit.compare.user_functions import build_of
from memfit.engines import ENGINES
from memfit.errors import MemfitError, StepFailedError
from memfit.phantom.target import DEFAULT_TORCH
from memfit.predict import JobPrediction, Prediction, predict


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Never raises: ``{"figures": ..., "sources": ...}``, or ``{"error": ..., "details": ...}``, which lasts: it was no accident of
    this process."""
    warnings.filterwarnings("ignore")
    known = set(sys.modules)
    try:
        figures = _predict(job)
    except StepFailedError as failed:
        return {"error": _one_line(failed.error), "details": failed.users_traceback, "is_lasting": True}
    except Exception as error:
        return {"error": _one_line(error), "details": "", "is_lasting": not isinstance(error, OSError | MemoryError)}
    return {"figures": figures, "sources": sources_of(job["inputs"], set(sys.modules) - known)}


def _predict(job: dict[str, Any]) -> dict[str, Any]:
    """A job may say ``shortened``: fewer microbatches than the cell has, from which the time of all of them follows; and ``ranks``:
    some of a pipeline's, not all."""
    started = time.perf_counter()
    inputs = job["inputs"]
    run = inputs | job.get("shortened", {})
    found = predict(
        build_of(run),
        gpu=inputs["gpu"],
        world_size=inputs["world_size"],
        steps=job["steps"],
        torch_version=job["torch_version"] or DEFAULT_TORCH,
        alloc_conf=job["alloc_conf"],
        interconnect=job.get("interconnect", ""),
        ranks=job.get("ranks", ranks_to_predict(inputs)),
    )
    prediction = found.worst.prediction if isinstance(found, JobPrediction) else found
    figures = figures_of(prediction) | {"seconds": round(time.perf_counter() - started, 2)}
    return figures | times_of(found, inputs, run)


def times_of(found: Prediction | JobPrediction, inputs: dict[str, Any], run: dict[str, Any]) -> dict[str, float]:
    """The step time of a pipeline, in which every stage waits for others; and the tokens of one GPU, where several share each: a
    GPU's own embedding looks up all that it has a part in. ``run`` is what was predicted of ``inputs``."""
    if "model" not in inputs:
        return {}
    parts, predicted = max(1, inputs["microbatches"]), max(1, run["microbatches"])
    if isinstance(found, JobPrediction):
        seconds = job_step_seconds(found, inputs["schedule"], inputs["pp"], predicted, simulated=parts)
    elif parts != predicted:
        engine = ENGINES.get(inputs["engine"])
        seconds = step_seconds_in_parts(found, predicted, parts, is_sharded=engine is not None and engine.shards)
    else:
        seconds = found.step_seconds or 0.0
    tokens = inputs["batch"] * inputs["seq"] / (inputs["tp"] * inputs["pp"] * inputs["cp"])
    return {"step_seconds": seconds, "tokens_per_second": tokens / seconds if seconds else 0.0}


def ranks_to_predict(inputs: dict[str, Any]) -> str | None:
    """The stages of a named model's pipeline need different memory, and the job fails on the worst of them."""
    return "all" if "function" not in inputs and inputs.get("pp", 1) > 1 else None


def figures_of(prediction: Prediction) -> dict[str, Any]:
    """``Figures``, in plain values."""
    verdict = prediction.verdict_alone
    figures = {name: getattr(verdict, name) for name in Figures.__dataclass_fields__ if hasattr(verdict, name)}
    return figures | {
        "least_gpu": verdict.least_gpu.name if verdict.least_gpu is not None else "",
        "peak_phase": verdict.moment.phase.label if verdict.moment is not None and verdict.moment.phase is not None else "",
        "breakdown": dict(verdict.largest),
        "assumptions": list(prediction.assumptions),
        "step_seconds": prediction.step_seconds or 0.0,
        "tokens_per_second": prediction.tokens_per_second or 0.0,
    }


def _one_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    said = text[0] if text else ""
    return said if isinstance(error, MemfitError) and said else f"{type(error).__name__}: {said}".removesuffix(": ")
