"""What a prediction had to assume, and what a user expects of values that only data can tell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memfit.errors import ConfigError


class Assumptions:
    """Sentences, with how often each was needed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._named: dict[str, dict[str, None]] = {}

    def add(self, sentence: str) -> None:
        self._counts[sentence] = self._counts.get(sentence, 0) + 1

    def add_name(self, sentence: str, name: str) -> None:
        """A sentence that is true of several things, which it lists: each once, however often."""
        self._counts.setdefault(sentence, 1)
        self._named.setdefault(sentence, {})[name] = None

    def counts(self) -> dict[str, int]:
        """How often each sentence has been needed so far."""
        return dict(self._counts)

    def repeat_since(self, counts: dict[str, int], times: int) -> None:
        """Counts what has been assumed since then ``times`` more times."""
        for sentence, count in self._counts.items():
            if sentence not in self._named:
                self._counts[sentence] = count + times * (count - counts.get(sentence, 0))

    def sentences(self) -> tuple[str, ...]:
        return tuple(self._in_full(text, count) for text, count in self._counts.items())

    def _in_full(self, text: str, count: int) -> str:
        if text in self._named:
            return f"{text}: {', '.join(self._named[text])}"
        return f"{text} ({count} times)" if count > 1 else text


# -- what a user expects -----------------------------------------------------------------------------------------------------
#
# ::
#
#     {"mask": 0.25}            a quarter of every mask is set
#     {"train.py:31": 128}      what line 31 of train.py asks for has 128 elements
#     {"experts": 1.5}          the experts of this rank receive half as much again as their even share
#     {"imbalance": 1.5}        the busiest expert receives one and a half times the mean
#     {"boxes": 300}            a detector keeps 300 boxes of an image
#     {"overflows": 2}          the first two steps of a loss scaler overflow
#     {"longest": 8192}         the longest sequence of the data has 8,192 tokens
#     {"vision::nms": 300}      what an operator of a library finds, where its fake says that data decide
#     {"number": 2.5}           what .item() reads from the GPU
#
# The place is written as ``Prediction.assumptions`` writes it, so that an assumption can be copied and answered. A place goes
# before a kind. Of a size, a whole number is the count itself and a fraction is a share of what there could be at most.

KINDS = {
    "mask": "how much of a boolean mask is set",
    "nonzero": "the rows of nonzero's result",
    "unique": "the number of different elements",
    "bins": "the number of bins of bincount",
    "repeats": "the sum of repeats",
    "experts": "how many times an even share of the tokens the experts of this rank receive",
    "imbalance": "how many times the mean the busiest expert receives, on the rank that has it",
    "boxes": "how many boxes non-maximum suppression keeps",
    "overflows": "how many steps a loss scaler skips, from the first on",
    "longest": "the tokens of the longest sequence of the data",
    "number": "a number read from the GPU",
}
_PLACE = re.compile(r"[^/\\]+:\d+")
_OPERATOR = re.compile(r"\w+::\w+")


@dataclass(frozen=True)
class Expected:
    """Values by place or kind."""

    by_name: Mapping[str, float] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set, compare=False)

    def __post_init__(self) -> None:
        for name, value in self.by_name.items():
            if name not in KINDS and not _PLACE.fullmatch(name) and not _OPERATOR.fullmatch(name):
                raise ConfigError(
                    f"cannot expect anything of {name!r}: name a place like train.py:31, an operator like vision::nms, "
                    f"or one of {', '.join(KINDS)}"
                )
            if isinstance(value, bool) or not isinstance(value, (int, float)) or (name != "number" and value < 0):
                raise ConfigError(f"cannot expect {value!r} of {name}: give a count, or a fraction of what there could be")

            if name == "overflows" and not isinstance(value, int):
                raise ConfigError(f"a loss scaler skips a whole number of steps, not {value}")
            if name == "longest" and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"the longest sequence has a whole number of tokens, at least 1, not {value}")
            if name == "imbalance" and not value >= 1:
                raise ConfigError(f"an imbalance of {value} is not possible: the busiest expert receives at least the mean, 1")

    @property
    def overflows(self) -> int:
        """How many steps a loss scaler skips, from the first on."""
        self._asked.add("overflows")
        return int(self.by_name.get("overflows", 0))

    @property
    def imbalance(self) -> float:
        """How many times the mean the busiest expert receives; 1 if routing is even."""
        self._asked.add("imbalance")
        return float(self.by_name.get("imbalance", 1.0))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Expected:
        """Reads ``mask=0.25`` and ``train.py:31=128``."""
        found: dict[str, float] = {}
        for text in texts:
            name, _, value = text.rpartition("=")
            try:
                found[name] = float(value) if set(value) & set(".e") else int(value)
            except ValueError:
                raise ConfigError(f"cannot read {text!r} as what is expected: write it like mask=0.25 or train.py:31=128") from None
        return cls(found)

    def value(self, kind: str, place: str) -> float | None:
        """What is expected there, ``None`` if nothing."""
        for name in (place, kind):
            if name in self.by_name:
                self._asked.add(name)
                return self.by_name[name]
        return None

    def count(self, kind: str, place: str, largest: int) -> int | None:
        """The same as a number of elements."""
        value = self.value(kind, place)
        if value is None:
            return None
        return min(largest, round(value * largest) if isinstance(value, float) and value <= 1 else round(value))

    def unused(self) -> tuple[str, ...]:
        """What was expected and never came up. The longest batch is made, not asked for."""
        never = self.by_name.keys() - self._asked - {"longest"}
        return tuple(f"nothing was asked of {name}, so what was expected of it had no effect" for name in sorted(never))
