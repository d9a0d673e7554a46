"""Every example is run as its README says, in a copy of its folder, without a GPU."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import ROOT
from helpers.prepared_process import run_prepared

from memfit.cli import main

EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Copies an example's folder, and makes the copy the current directory."""

    def copy(name: str) -> Path:
        folder = shutil.copytree(EXAMPLES / name, tmp_path / name)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        return folder

    return copy


def commands_in(readme: Path) -> list[list[str]]:
    """The lines of its code blocks, without comments."""
    blocks = re.findall(r"```\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def follow(readme: Path, capsys, *, more: tuple[str, ...] = ()) -> str:
    """Runs the commands of a README one after the other, ``more`` added to those of memfit; gives what all of them printed."""
    for words in commands_in(readme):
        if words[0] == "memfit":
            options = more if words[1] in ("run", "predict", "compare") else ()
            assert main([words[1], *options, *words[2:]]) == 0
        else:
            assert words[0] == "python"
            runpy.run_path(words[1], run_name="__main__")
    return capsys.readouterr().out


def test_every_folder_is_listed_and_has_a_readme():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert FOLDERS
    for name in FOLDERS:
        assert f"[{name}]({name}/README.md)" in listed
        assert commands_in(EXAMPLES / name / "README.md")


def test_predict_llama3_8b(copied, capsys):
    said = follow(copied("predict_llama3_8b") / "README.md", capsys, more=("--steps", "1"))
    assert "Llama-3 8B with FSDP on eight H100-80GB: fits" in said
    assert "It fits on A100-80GB" in said


def test_track_training(copied, capsys):
    folder = copied("track_training")
    said = follow(folder / "README.md", capsys)
    assert "The peak by category" in said
    assert (folder / "report.html").stat().st_size > 100_000


def lines_shown(page: Path) -> set[str]:
    """The lines of a page's output blocks, which are marked as text; ``...`` stands for what was left out."""
    blocks = re.findall(r"```text\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return {line.strip() for block in blocks for line in block.splitlines() if line.strip() not in ("", "...")}


def test_out_of_memory_says_what_the_h200_said_and_what_the_tutorial_shows(copied, capsys):
    said = follow(copied("out_of_memory") / "README.md", capsys)
    # torch 2.11 on a real H200: tried to allocate 7.81 GiB, 131.89 GiB allocated, 188.02 MiB reserved but unallocated.
    assert "asking for 7.81 GiB with 131.89 GiB allocated and 188.02 MiB free, but in pieces" in said
    printed = {line.strip() for line in said.splitlines()}
    tutorial = lines_shown(ROOT / "docs" / "tutorial.md")
    real = {line for line in tutorial if re.match(r"torch.OutOfMemoryError|step \d: loss|peak: ", line)}
    shown = tutorial - real
    assert len(shown) > 20
    assert shown <= printed
    for allocated, reserved in (("83.56", "83.89"), ("51.35", "55.31")):
        assert f"peak: {allocated} GiB allocated, {reserved} GiB reserved" in real
        assert f"allocated      {allocated} GiB" in said
        assert f"reserved       {reserved} GiB" in said


def test_fsdp_choices(copied, capsys):
    said = follow(copied("fsdp_choices") / "README.md", capsys, more=("--steps", "1"))
    assert said.count(" fits, ") == 4
    assert said.count(" short ") == 2


def test_memory_test_in_ci(copied):
    folder = copied("memory_test_in_ci")
    assert [words[0] for words in commands_in(folder / "README.md")] == ["pytest", "pytest"]

    def pytest_says() -> subprocess.CompletedProcess[str]:
        return run_prepared("import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))", "-p", "no:cacheprovider")

    assert pytest_says().returncode == 0
    model = folder / "model.py"
    model.write_text(model.read_text().replace("HIDDEN = 4096", "HIDDEN = 8192"))
    failed = pytest_says()
    assert failed.returncode == 1
    assert "MemoryGrewError" in failed.stdout
    assert "1 failed, 1 passed" in failed.stdout


def test_notebook(copied):
    cells = json.loads((copied("notebook") / "memory.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "outputs are not committed"
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    for name in ("prediction", "tracker"):
        drawn = names[name].ledger if name == "tracker" else names[name]
        assert "<svg" in drawn._repr_html_()
