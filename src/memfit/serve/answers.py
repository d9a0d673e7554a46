"""What a worker of the page does: predict what is asked, keep the ledger, and say what came out in plain values."""

from __future__ import annotations

import warnings
from typing import Any

from memfit.errors import StepFailedError
from memfit.job import Configuration
from memfit.predict.api import predict_build
from memfit.predict.cells import figures_of, times_of
from memfit.predict.ranks import JobPrediction
from memfit.serve.seen import see
from memfit.views.verdicts import host_words, words_about_others
from memfit.views.words.timing import time_words


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Never raises: ``{"seen": ..., "figures": ...}``, with the ledger in ``job["ledger"]``; or ``{"error": ..., "details": ...}``.
    A job without a question only has torch imported."""
    if "asked" not in job:
        return {}
    warnings.filterwarnings("ignore")
    try:
        return _predict(Configuration.from_json(job["asked"]), job["ledger"], job["made_at"])
    except StepFailedError as failed:
        return {"error": f"{failed.what} failed: {failed.error}", "details": f"{failed.users_traceback}\n{failed.advice}"}
    except Exception as error:
        return {"error": str(error) or type(error).__name__, "details": ""}


def _predict(asked: Configuration, ledger: str, made_at: str) -> dict[str, Any]:
    run = asked
    if asked.options.ranks is None and asked.is_model and asked.recipe.pp > 1:
        run = asked.with_options(ranks="all")  # stages need different memory, and the job fails on the worst of them
    found = predict_build(run.builder(), run.options).about(asked.inputs, made_at=made_at)
    prediction = found.worst.prediction if isinstance(found, JobPrediction) else found
    prediction.ledger.save(ledger)
    times = times_of(found, asked, run) if asked.subject.model else {}
    seen = see(prediction.ledger, prediction.verdict, prediction.report)
    others = [*words_about_others(prediction.device, prediction.verdicts_of_others), *host_words(prediction.host)]
    seen |= {"fits": found.fits, "remarks": [*seen["remarks"], *others], "time": [*time_words(prediction)]}
    seen |= {"assumptions": [*found.assumptions], "mfu": prediction.mfu} | times
    return {"seen": seen, "figures": figures_of(prediction) | {"seconds": 0.0} | times}
