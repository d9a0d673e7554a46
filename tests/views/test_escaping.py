from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.views.escaping import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0.wq", "layers.0.wq"),
        ("Größe 模型", "Größe 模型"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b2J", "\\x9b2J"),
        ("abc\u202ecba", "abc\\u202ecba"),
        ("\ud800", "\\ud800"),
        ("\U000e0001", "\\U000e0001"),
        ("", ""),
    ],
)
def test_what_does_not_print_as_itself_is_written_out(text: str, shown: str):
    assert printable(text) == shown


@given(st.text(st.characters()))
def test_the_outcome_always_prints(text: str):
    assert printable(text).isprintable()
    printable(text).encode()
