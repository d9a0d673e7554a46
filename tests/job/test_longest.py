"""The longest sequence of the data: one step has it, and what cannot have it is refused."""

import pytest

import memfit
from memfit.errors import ConfigError
from memfit.job import Configuration, PredictOptions, Subject
from memfit.job.options import LONGEST_STEP
from memfit.job.training import Batches

LONGEST = PredictOptions(gpu="T4", expected={"longest": 512})


def test_one_step_has_the_longest():
    made = []
    batches = Batches(lambda seq: made.append(seq) or seq, 128, 512)
    assert [batches.next() for _ in range(4)] == [128, 512, 128, 128]
    assert made == [128, 512]
    assert LONGEST_STEP == 1


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ({"seq": 1024}, "cannot have 512 tokens"),
        ({"seq": 128, "pp": 2}, "made for one length"),
    ],
)
def test_what_cannot_be_is_refused(words, problem):
    with pytest.raises(ConfigError, match=problem):
        Configuration.of(Subject(model="llama3-8b"), words, LONGEST)


def test_what_the_model_cannot_take_is_refused():
    options = PredictOptions(expected={"longest": 2048})
    with pytest.raises(ConfigError, match="sequences of up to 1024 tokens"):
        Configuration.of(Subject(model="gpt2"), {"seq": 128}, options)


def test_a_function_makes_its_own_batches():
    with pytest.raises(ConfigError, match="makes its own batches"):
        memfit.predict(lambda: None, expected={"longest": 512})


def test_too_few_steps_are_refused():
    with pytest.raises(ConfigError, match="predict 2 steps or more"):
        PredictOptions(steps=1, expected={"longest": 512})
