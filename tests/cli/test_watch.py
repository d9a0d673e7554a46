"""What ``memfit watch`` refuses, and what it advises."""

from pathlib import Path

import pytest

from memfit.cli import build_parser, main


def test_what_is_advised_for_a_missing_prediction_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    missing = tmp_path / "predicted.memfit"
    assert main(["watch", "--out", str(tmp_path / "run.memfit"), "--against", str(missing), "python", "train.py"]) == 2
    _, _, advised = capsys.readouterr().err.strip().partition("with memfit ")
    parsed = build_parser(["run"]).parse_args([*advised.split(), "train.py"])
    assert parsed.out == missing


def test_the_former_word_for_the_file_is_still_accepted(tmp_path: Path):
    parser = build_parser(["watch"])
    for flag in ("-o", "--out", "--save-to"):
        assert parser.parse_args(["watch", flag, str(tmp_path / "a.memfit"), "train.py"]).out == tmp_path / "a.memfit"
