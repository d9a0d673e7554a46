"""What the page sends is read once, and what it gives back asks the same."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from memfit.choices import AXES
from memfit.cli import build_parser
from memfit.cli.flags import read_options, read_subject, read_words
from memfit.errors import ConfigError
from memfit.job import Configuration
from memfit.models import MODELS
from memfit.serve.controls import describe_controls
from memfit.serve.instant import instant_answer
from memfit.serve.questions import Question, keep_config, read_question

ASKED = {
    "kind": "model",
    "subject": "llama3-8b",
    "gpu": "H100-80GB",
    "world_size": 8,
    "words": {"batch": 2, "checkpointing": "full"},
}


def read(folder: Path, **changes: Any) -> Question:
    return read_question(ASKED | changes, folder, folder)


def test_every_flag_of_a_recipe_is_a_control(folder: Path):
    controls = describe_controls(folder)
    assert {control["name"] for control in controls["axes"]} == set(AXES)
    for control in controls["axes"]:
        assert control["kind"] != "menu" or control["options"] == [*(AXES[control["name"]].choices or ())]
    assert controls["functions"] == ["train.py:build"]
    assert controls["configs"] == ["config.json"]
    json.dumps(controls)


@pytest.mark.parametrize("changes", [{}, {"alloc_conf": "expandable_segments:True"}, {"words": {"mesh": "dp=4,tp=2"}}])
def test_the_command_asks_the_same(folder: Path, changes: dict[str, Any]):
    question = read(folder, **changes)
    args = build_parser(["predict"]).parse_args(shlex.split(question.command)[1:])
    again = Configuration.of(read_subject(args), {name: value[0] for name, value in read_words(args).items()}, read_options(args))
    assert again == question.configuration


def test_the_python_asks_the_same(folder: Path):
    asked = {}
    eval(read(folder).python, {"memfit": type("memfit", (), {"predict": lambda **words: asked.update(words)})})
    assert asked == {"model": "llama3-8b", "gpu": "H100-80GB", "world_size": 8, "batch": 2, "checkpointing": "full"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "dance"}, "ask about a model"),
        ({"subject": ""}, "say what is trained"),
        ({"subject": "llama3-9b"}, "did you mean"),
        ({"gpu": "H1000"}, "unknown GPU"),
        ({"world_size": 2.5}, "whole number"),
        ({"world_size": 3, "words": {"tp": 2}}, "3"),
        ({"words": {"batch": -1}}, "at least 1"),
        ({"words": {"batch": "many"}}, "whole numbers"),
        ({"words": {"dance": 1}}, "no 'dance'"),
        ({"price": -1}, "a price"),
        ({"kind": "function", "subject": "../../etc/passwd:build"}, "there is no"),
        ({"kind": "function", "subject": "/etc/hostname:build"}, "there is no"),
        ({"kind": "script", "subject": "../other.py"}, "there is no"),
        ({"kind": "hf", "subject": "/etc/hostname"}, "there is no"),
        ({"kind": "hf", "subject": "dropped:../run.memfit"}, "there is no"),
    ],
)
def test_what_cannot_be_is_told_in_a_line(folder: Path, changes: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said) as told:
        read(folder, **changes)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"{" * 100_000, b'{"model_type": 1}', b"\xff\xfe", b" " * (1 << 21)])
def test_a_dropped_file_that_is_no_config(tmp_path: Path, data: bytes):
    with pytest.raises(ConfigError):
        keep_config(data, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_a_dropped_config_can_be_asked_about(folder: Path, tmp_path: Path):
    subject = keep_config((folder / "config.json").read_bytes(), tmp_path)
    found = read_question({"kind": "hf", "subject": subject, "words": {"seq": 16}}, folder, tmp_path)
    assert found.configuration is not None
    assert found.configuration.subject.hf == str((tmp_path / subject.removeprefix("dropped:")).resolve())

    assert "--hf config.json" in found.command
    assert "hf='config.json'" in found.python


@pytest.mark.parametrize(
    ("model", "words", "offered"),
    [("llama3-8b", {}, {"lora": 16}), ("llama3-8b", {"lora": 16, "seq": 512}, {"quantize": "nf4"})],
)
def test_adapters_are_offered_where_weights_do_not_fit(folder: Path, model: str, words: dict[str, Any], offered: dict[str, Any]):
    found = instant_answer(read(folder, subject=model, gpu="T4", world_size=1, words=words), None)
    assert found["tone"] == "bad"
    assert offered in [way["change"] for way in found["ways"]]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_by_name_has_an_instant_answer_that_is_marked(folder: Path, model: str):
    found = instant_answer(read(folder, subject=model, words={}), None)
    assert found["kind"] == "bound"
    assert "at least" in found["headline"]
    assert found["tone"] != "good", "a bound never says that it fits"
    assert any(bar["isWanted"] for bar in found["gpus"])


def test_what_may_fit_is_offered_where_it_cannot(folder: Path):
    found = instant_answer(read(folder, subject="llama3-8b", gpu="RTX-4090", words={"batch": 8}), None)
    assert found["tone"] == "bad"
    assert [way["mayFit"] for way in found["ways"]] == ["may fit" in way["text"] for way in found["ways"]]
    for way in found["ways"]:
        words = {"batch": 8} | {name: value for name, value in way["change"].items() if name != "world_size"}
        world = way["change"].get("world_size", 8)
        assert instant_answer(read(folder, gpu="RTX-4090", words=words, world_size=world), None)["kind"] == "bound"


def test_only_answers_that_no_file_can_change_are_kept(folder: Path):
    assert read(folder).is_lasting
    for kind, subject in (("hf", "config.json"), ("function", "train.py:build"), ("script", "train.py")):
        assert not read(folder, kind=kind, subject=subject, words={}).is_lasting
