"""Colours that colour-blind people can tell apart, in dark and light.

How a colour looks to them is simulated as Machado, Oliveira and Fernandes (2009) do for a complete lack of one kind of cones; how
different two colours look is their distance in CIELAB.
"""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest
from helpers import ROOT

from memfit.ledger import Category, WorkKind

STYLE = (ROOT / "web" / "src" / "page.css").read_text()
LIGHT, DARK = STYLE.split("@media (prefers-color-scheme: dark)")[:2]
VISIONS = {
    "ordinary": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]),
    "tritanopia": np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]]),
}
SAME = ({"parameter", "sharded_parameter"}, {"gradient", "sharded_gradient"})
"""A parameter is sharded or it is not: where there is the one, there is hardly the other."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
NOTICEABLE = 8.0


def colours(style: str) -> dict[str, str]:
    return dict(re.findall(r"--c-(\w+): (#[0-9a-f]{6})", style.split("\n}")[0]))


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(first: str, second: str, vision: np.ndarray) -> float:
    return float(np.linalg.norm(lab(vision @ linear(first)) - lab(vision @ linear(second))))


@pytest.mark.parametrize("style", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_categories_can_be_told_apart(style: str, vision: str):
    found = colours(style)
    assert set(found) == {category.name.lower() for category in Category}
    close = {
        (first, second): round(apart, 1)
        for first, second in combinations(found, 2)
        if {first, second} not in SAME and (apart := distance(found[first], found[second], VISIONS[vision])) < NOTICEABLE
    }
    assert not close


def test_the_proof_can_fail():
    assert distance("#ff0000", "#00b000", VISIONS["ordinary"]) > 100
    assert distance("#a05000", "#707000", VISIONS["protanopia"]) < NOTICEABLE + 12
    assert distance("#123456", "#123456", VISIONS["ordinary"]) == 0


def contrast(first: str, second: str) -> float:
    light, dark = sorted((TO_XYZ[1] @ linear(colour) for colour in (first, second)), reverse=True)
    return float((light + 0.05) / (dark + 0.05))


@pytest.mark.parametrize("style", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("ink", ["ink", "quiet", "good", "bad", "focus"])
def test_text_can_be_read(style: str, ink: str):
    found = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", style.split("\n}")[0]))
    assert contrast(found[ink], found["paper"]) > 4.5
    assert contrast(found[ink], found["sunk"]) > 4.5


def test_kinds_of_work_have_colours_of_categories_that_can_be_told_apart():
    found = dict(re.findall(r"--w-(\w+): var\(--c-(\w+)\)", LIGHT))
    assert set(found) == {kind.label for kind in WorkKind}
    assert len(set(found.values())) == len(found)
    assert not any({first, second} in SAME for first, second in combinations(found.values(), 2))
