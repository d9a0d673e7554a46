import json
from pathlib import Path

import pytest
from helpers import ROOT

from memfit.cli import build_parser
from memfit.cli.commands import fit
from memfit.errors import ConfigError, TraceError
from memfit.testing import ledger

TRUTH = ROOT / "benchmarks" / "truth"


def run(*argv: str) -> int:
    return fit.run(build_parser(["fit"]).parse_args(["fit", *argv]))


@pytest.fixture
def saved(tmp_path: Path) -> str:
    text = "alloc 10GiB parameter w on cuda:0; step; enter forward; alloc 4GiB x on cuda:0; enter backward; exit; exit; free x"
    ledger(text).save(tmp_path / "run.memfit")
    return str(tmp_path / "run.memfit")


def test_a_run_that_fits(saved: str, capsys: pytest.CaptureFixture[str]):
    assert run(saved, "--gpu", "a100-40gb") == 0
    out = capsys.readouterr().out
    assert "It fits on A100-40GB, with 24.84 GiB to spare." in out
    assert "step 0, forward" in out
    assert "At the peak: parameter 10.00 GiB, activation 4.00 GiB." in out
    assert "672.00 MiB for CUDA" in out


def test_a_run_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    text = "alloc 11GiB parameter w on cuda:0; step; enter forward; alloc 4GiB x on cuda:0; exit"
    ledger(text).save(tmp_path / "larger.memfit")
    assert run(str(tmp_path / "larger.memfit"), "--gpu", "T4") == 0
    out = capsys.readouterr().out
    assert "It does not fit on T4: short by 750.00 MiB." in out
    assert "The smallest GPU on which it fits: V100-16GB." in out
    assert "It runs out at event 3, asking for 4.00 GiB with 11.00 GiB allocated" in out
    assert "max_split_size_mb:128" in out


def test_a_tight_fit_says_what_it_takes(capsys: pytest.CaptureFixture[str]):
    assert run(str(TRUTH / "traces" / "trace_fsdp2_llama3_70b_w64.npz"), "--gpu", "A100-40GB", "--process-groups", "1") == 0
    out = capsys.readouterr().out
    assert "runs short of memory 4 times" in out
    assert "688.00 MiB for NCCL" in out
    assert "note: some capacities between" in out


@pytest.mark.parametrize("file", ["traces/trace_hf_resnet.npz", "settings/pools.pickle"])
def test_traces_and_snapshots(file: str, capsys: pytest.CaptureFixture[str]):
    assert run(str(TRUTH / file), "--gpu", "h200", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["peak_allocated"] <= answer["smallest_fit"] <= answer["peak_reserved"]
    assert (answer["fits"], answer["gpu"]) == (True, "H200")


def test_settings_and_version_are_taken(capsys: pytest.CaptureFixture[str]):
    trace = str(TRUTH / "traces" / "trace_llama_amp_ckpt.npz")
    run(trace, "--gpu", "h200", "--json", "--alloc-conf", "expandable_segments:True", "--torch-version", "2.13")
    answer = json.loads(capsys.readouterr().out)
    assert answer["peak_reserved"] == 9900 * 2**20
    assert answer["settings"]["torch_version"] == "2.13"


def test_recorded_settings_can_be_overruled(capsys: pytest.CaptureFixture[str]):
    trace = str(TRUTH / "settings" / "expandable.npz")
    run(trace, "--gpu", "h200", "--json")
    recorded = json.loads(capsys.readouterr().out)
    run(trace, "--gpu", "h200", "--json", "--alloc-conf", "")
    plain = json.loads(capsys.readouterr().out)
    assert (recorded["settings"]["expandable_segments"], plain["settings"]["expandable_segments"]) == (True, False)
    assert recorded["peak_reserved"] < plain["peak_reserved"]


def test_mistakes_are_told(saved: str, tmp_path: Path):
    with pytest.raises(ConfigError, match="unknown GPU"):
        run(saved, "--gpu", "abacus")
    with pytest.raises(ConfigError, match="unknown allocator setting"):
        run(saved, "--gpu", "T4", "--alloc-conf", "speed:high")
    with pytest.raises(TraceError, match="cannot be read"):
        run(str(tmp_path / "nothing"), "--gpu", "T4")
