"""What a prediction had to assume, each thing once, in the order it came up."""

from __future__ import annotations


class Assumptions:
    """Sentences, with how often each was needed."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, sentence: str) -> None:
        self._counts[sentence] = self._counts.get(sentence, 0) + 1

    def sentences(self) -> tuple[str, ...]:
        return tuple(f"{text} ({count} times)" if count > 1 else text for text, count in self._counts.items())
