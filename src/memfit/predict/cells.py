"""What the process of one cell does: predict it, and say what came out in plain values."""

from __future__ import annotations

import sys
import sysconfig
import time
import warnings
from pathlib import Path
from typing import Any

from memfit.engines import ENGINES
from memfit.errors import MemfitError, StepFailedError
from memfit.job import CellResult, Configuration
from memfit.predict.api import predict_build
from memfit.predict.ranks import JobPrediction
from memfit.predict.result import Prediction
from memfit.predict.step_time import job_step_seconds, step_seconds_in_parts
from memfit.reading import hash_file


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Never raises: ``{"figures": ..., "sources": ...}``, or ``{"error": ..., "details": ...}``, which lasts: it was no accident of
    this process.

    ``job`` is a ``Configuration`` in JSON. It may have ``shortened``, too: fewer microbatches than the configuration has, from
    which the time of all of them follows.
    """
    warnings.filterwarnings("ignore")
    known = set(sys.modules)
    try:
        asked = Configuration.from_json(job)
        figures = _predict(asked, job.get("shortened", {}))
    except StepFailedError as failed:
        return {"error": _one_line(failed.error), "details": failed.users_traceback, "is_lasting": True}
    except Exception as error:
        return {"error": _one_line(error), "details": "", "is_lasting": not isinstance(error, OSError | MemoryError)}
    return {"figures": figures, "sources": _sources_of(asked, set(sys.modules) - known)}


def _predict(asked: Configuration, shortened: dict[str, int]) -> dict[str, Any]:
    started = time.perf_counter()
    run = asked.with_recipe(**shortened) if shortened else asked
    if asked.options.ranks is None and asked.is_model and asked.recipe.pp > 1:
        run = run.with_options(ranks="all")  # stages need different memory, and the job fails on the worst of them
    found = predict_build(run.builder(), run.options)
    prediction = found.worst.prediction if isinstance(found, JobPrediction) else found
    figures = figures_of(prediction) | {"seconds": round(time.perf_counter() - started, 2)}
    return figures | (times_of(found, asked, run) if asked.subject.model else {})


def times_of(found: Prediction | JobPrediction, asked: Configuration, run: Configuration) -> dict[str, float]:
    """The step time of a pipeline, in which every stage waits for others; and the tokens of one GPU, where several share each: a
    GPU's own embedding looks up all that it has a part in. ``run`` is what was predicted of what was asked."""
    recipe = asked.recipe
    parts, predicted = max(1, recipe.microbatches), max(1, run.recipe.microbatches)
    if isinstance(found, JobPrediction):
        seconds = job_step_seconds(found, recipe.schedule, recipe.pp, predicted, simulated=parts)
    elif parts != predicted:
        engine = ENGINES.get(recipe.engine)
        seconds = step_seconds_in_parts(found, predicted, parts, is_sharded=engine is not None and engine.shards)
    else:
        seconds = found.step_seconds or 0.0
    tokens = recipe.batch * recipe.seq / (recipe.tp * recipe.pp * recipe.cp)
    return {"step_seconds": seconds, "tokens_per_second": tokens / seconds if seconds else 0.0}


def figures_of(prediction: Prediction) -> dict[str, Any]:
    """``CellResult``, in plain values."""
    verdict = prediction.verdict_alone
    figures = {name: getattr(verdict, name) for name in CellResult.__dataclass_fields__ if hasattr(verdict, name)}
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


def _sources_of(asked: Configuration, modules: set[str]) -> dict[str, str]:
    """The user's own files that had a part in it, and their hashes: if one changes, the cell is predicted again."""
    subject = asked.subject
    card = asked.options.gpu.rpartition("=")[2]  # of a card that its owner measured, the file
    files = (subject.hf, subject.function.rpartition(":")[0], card if card.endswith(".toml") else "")
    paths = {Path(path) for path in files if path}
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for name in modules:
        path = getattr(sys.modules.get(name), "__file__", None) or ""
        if path.endswith(".py") and not any(path.startswith(folder) for folder in installed) and not name.startswith("memfit."):
            paths.add(Path(path))
    return {str(path.resolve()): hash_file(path) for path in sorted(paths)}
