"""Figures that can be held against text, and how much they may grow."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import ConfigError
from memfit.units import GIB, MIB, Allowance, Bytes

amounts = st.integers(0, 2**50)


@given(amounts, amounts)
def test_text_and_numbers_compare_alike(size: int, other: int):
    left = Bytes(size)
    assert (left < f"{other}B", left <= f"{other}B", left > f"{other}B", left >= f"{other}B") == (
        size < other,
        size <= other,
        size > other,
        size >= other,
    )
    assert (left < other, left <= other, left > other, left >= other) == (size < other, size <= other, size > other, size >= other)
    assert (f"{other}B" > left, f"{other}B" >= left) == (other > size, other >= size)


def test_units():
    assert Bytes(38 * GIB) <= "38GiB"
    assert not Bytes(38 * GIB) < "38GiB"
    assert Bytes(38 * GIB) > "38 GB"


def test_everywhere_else_it_is_the_number():
    size = Bytes(3 * MIB)
    assert size == 3 * MIB
    assert hash(size) == hash(3 * MIB)
    assert size != "3MiB", "equal text would need an equal hash"
    assert f"{size}" == str(size) == json.dumps(size) == "3145728"
    assert f"{size:,}" == "3,145,728"
    assert type(size + 1) is int
    assert sorted([Bytes(2), 1, Bytes(0)]) == [0, 1, 2]
    assert Bytes(80) < 0.9 * 100
    assert not Bytes(80) >= 80.5


def test_it_shows_itself_in_units():
    assert repr(Bytes(3 * MIB)) == "3.00 MiB (3145728 bytes)"
    assert repr(Bytes(7)) == "7 bytes"
    assert repr(Bytes(-2 * GIB)) == "-2.00 GiB (-2147483648 bytes)"


def test_text_that_is_no_amount():
    with pytest.raises(ConfigError, match="write it like 38GiB"):
        assert Bytes(1) < "lots"


@pytest.mark.parametrize(
    ("text", "of_a_gib"),
    [("2%", GIB // 50), ("0.5 %", GIB // 200), ("500MiB", 500 * MIB), ("0", 0), ("100%", GIB), (" 1 KiB ", 1024)],
)
def test_an_allowance(text: str, of_a_gib: int):
    assert Allowance.parse(text).of(GIB) == of_a_gib


@pytest.mark.parametrize("text", ["", "%", "-1%", "2 percent", "1e3%", "lots"])
def test_an_allowance_that_cannot_be_meant(text: str):
    with pytest.raises(ConfigError, match="write it like 2% or 500MiB"):
        Allowance.parse(text)
