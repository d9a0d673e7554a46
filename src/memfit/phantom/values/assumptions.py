"""What a prediction had to assume, each thing once, in the order it came up."""

from __future__ import annotations


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
        """What has been needed since then is needed so many times more."""
        for sentence, count in self._counts.items():
            if sentence not in self._named:
                self._counts[sentence] = count + times * (count - counts.get(sentence, 0))

    def sentences(self) -> tuple[str, ...]:
        return tuple(self._in_full(text, count) for text, count in self._counts.items())

    def _in_full(self, text: str, count: int) -> str:
        if text in self._named:
            return f"{text}: {', '.join(self._named[text])}"
        return f"{text} ({count} times)" if count > 1 else text
