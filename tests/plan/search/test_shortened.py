"""Few microbatches stand for many: their memory is the same, and the time of the others follows."""

from typing import Any

import pytest
from helpers.planned_models import asked_of, few_layers

from memfit.job import Configuration
from memfit.plan.search.jobs import job_of, shortened_of, what_was_shortened
from memfit.predict.cells import work


def predicted(asked: Configuration, *, shortened: bool) -> dict[str, Any]:
    job = job_of(asked, is_final=False)
    if not shortened:
        job.pop("shortened")
    answer = work(job)
    assert "figures" in answer, answer
    found: dict[str, Any] = answer["figures"]
    return found


@pytest.mark.parametrize("chosen", [{"strategy": "full_shard"}, {"world_size": 1}])
def test_a_batch_in_parts_allocates_the_same_and_takes_as_long_part_by_part(chosen: dict[str, Any]):
    with few_layers("qwen3-8b", 2) as name:
        asked = asked_of(name, microbatches=4, batch=4, **chosen)
        short, whole = (predicted(asked, shortened=shortened) for shortened in (True, False))
    assert short["peak_allocated"] == whole["peak_allocated"]
    assert short["step_seconds"] == pytest.approx(whole["step_seconds"], rel=0.01)


def test_the_time_of_a_pipeline_is_about_what_fewer_microbatches_say():
    """What a step has to do once, however many there are, is not a part of each."""
    with few_layers("qwen3-8b", 6) as name:
        asked = asked_of(name, pp=2, microbatches=8, batch=8)
        short, whole = (predicted(asked, shortened=shortened) for shortened in (True, False))
    assert short["step_seconds"] == pytest.approx(whole["step_seconds"], rel=0.03)


def test_an_answer_is_predicted_with_all_that_counts_and_the_rest_is_said():
    few, many = (asked_of("llama3-8b", microbatches=count, batch=2 * count) for count in (8, 16))
    assert shortened_of(few, is_final=False) == {"microbatches": 2, "batch": 4}
    assert shortened_of(few, is_final=True) == {}
    assert what_was_shortened(few, is_final=True) == ""
    assert "8 of 16 microbatches were predicted" in what_was_shortened(many, is_final=True)
    pipeline = asked_of("llama3-8b", pp=2, microbatches=16, batch=16)
    assert shortened_of(pipeline, is_final=False) == {"microbatches": 4, "batch": 4}
    assert "shortened" not in job_of(pipeline, is_final=True)
    assert job_of(pipeline, is_final=True)["options"]["ranks"] is None, "all of them"
    assert job_of(pipeline, is_final=False)["options"]["ranks"] == (0, 7)
