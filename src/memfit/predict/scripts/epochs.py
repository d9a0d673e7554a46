"""Loops over data loaders, and how they are cut short.

When time is up in the middle of an epoch, what follows it would not be seen: an evaluation in another precision, a copy of the
weights for a checkpoint. So the loops that are under way get no more batches, as if their data had ended.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Final

from memfit.torch_compat.attributes import batches_given

MOST_FETCHED_AHEAD: Final = 3
"""Scripts fetch batches ahead, so training goes on for some steps after its data have ended."""


class Epochs:
    """The loops over data loaders that are under way. None is kept alive."""

    def __init__(self) -> None:
        self._under_way: weakref.WeakSet[Any] = weakref.WeakSet()
        self._to_end: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_ended = self._has_begun_again = False
        self._num_steps_after = 0
        self.where_it_was_cut = (0, 0)
        """How many batches of how many there were in the longest of the loops that were cut short; zeros where none was."""

    def around(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """In the place of an iterator's ``__next__``."""

        def following(iterator: Any) -> Any:
            if iterator in self._to_end:
                self._to_end.discard(iterator)  # with persistent workers, the next epoch has the same iterator
                self._has_ended = True
                raise StopIteration
            try:
                batch = original(iterator)
            except StopIteration:
                self._under_way.discard(iterator)
                raise
            self._under_way.add(iterator)
            self._has_begun_again |= self._has_ended
            return batch

        return following

    def cut_short(self) -> bool:
        """Ends the loops that are under way; whether there are any."""
        self._to_end.update(self._under_way)
        self.where_it_was_cut = max(map(_progress, self._under_way), key=lambda found: found[1], default=(0, 0))
        self._under_way.clear()
        return bool(self._to_end)

    def is_over_after_step(self) -> bool:
        """Asked after each training step that follows: does it belong to another epoch, or has nothing come of the cut?"""
        self._num_steps_after += 1
        return self._has_begun_again or self._num_steps_after >= MOST_FETCHED_AHEAD


def _progress(iterator: Any) -> tuple[int, int]:
    """How many batches of how many a data loader has given; zeros where it does not say."""
    try:
        return batches_given(iterator), len(iterator)
    except TypeError:  # a stream of data has no length
        return 0, 0
