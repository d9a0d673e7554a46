"""The pages on these words: the snippet runs, and the tables are those that a command wrote."""

import re

from helpers import ROOT

PAGE = (ROOT / "docs" / "fsdp.md").read_text()
WORDS = [path.read_text() for path in (ROOT / "docs" / "fsdp").glob("*.md")]


def test_the_snippet_runs(capsys):
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(snippet, "docs/fsdp.md", "exec"), {})
    assert capsys.readouterr().out.startswith("True ")


def test_figures_come_from_the_benchmark():
    written = (ROOT / "benchmarks" / "results" / "fsdp_words.md").read_text().splitlines()
    with_figures = [line for page in WORDS for line in page.splitlines() if re.match(r"\| .* \| \d+\.\d\d \|", line)]
    assert len(with_figures) > 30
    assert set(with_figures) <= set(written)
