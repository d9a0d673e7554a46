"""Loops over data loaders, and how they are cut short.

When time is up in the middle of an epoch, what follows it would not be seen: an evaluation in another precision, a copy of the
weights for a checkpoint. So the loops that are under way get no more batches, as if their data had ended.

Where a user says how long the longest sequence of the data is, one batch of the training data is padded to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, Final

import torch

from memfit.torch_compat.attributes import batches_given

MOST_FETCHED_AHEAD: Final = 3
"""Scripts fetch batches ahead, so training goes on for some steps after its data have ended."""


class Epochs:
    """The loops over data loaders that are under way. None is kept alive."""

    def __init__(self, longest: int = 0) -> None:
        """``longest``: the tokens that one of the batches is to have; 0 leaves all as they are."""
        self._under_way: weakref.WeakSet[Any] = weakref.WeakSet()
        self._to_end: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_ended = self._has_begun_again = False
        self._num_steps_after = 0
        self._last: weakref.ref[Any] | None = None
        """What gave the last batch."""
        self._to_lengthen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._longest = longest
        self.was_lengthened = not longest
        """Was there a batch as long as the longest?"""
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
            self._last = weakref.ref(iterator)
            return self._lengthened(batch) if iterator in self._to_lengthen else batch

        return following

    def lengthen_next(self) -> None:
        """The next batch of the loader that gave the last one, which was trained on, is the longest."""
        iterator = None if self._last is None else self._last()
        if iterator is not None and not self.was_lengthened:
            self._to_lengthen.add(iterator)

    def _lengthened(self, batch: Any) -> Any:
        self._to_lengthen.clear()
        tokens = [tensor for tensor in _tensors(batch) if tensor.dim() == 2 and _is_of_whole_numbers(tensor)]
        if not tokens:
            return batch
        self.was_lengthened = True
        length = max(tokens, key=torch.Tensor.numel).shape[1]
        return _with_tensors(batch, lambda tensor: _padded(tensor, length, self._longest))

    def progress(self) -> tuple[int, int]:
        """How many batches of how many the longest of the loops has been given; zeros where that is not known."""
        return max(map(_progress, self._under_way), key=lambda found: found[1], default=(0, 0))

    def cut_short(self) -> bool:
        """Ends the loops that are under way; whether there are any."""
        self._to_end.update(self._under_way)
        self.where_it_was_cut = self.progress()
        self._under_way.clear()
        return bool(self._to_end)

    def is_over_after_step(self) -> bool:
        """Asked after each training step that follows: does it belong to another epoch, or has nothing come of the cut?"""
        self._num_steps_after += 1
        return self._has_begun_again or self._num_steps_after >= MOST_FETCHED_AHEAD


# -- a longer batch ----------------------------------------------------------------------------------------------------------------


def _padded(tensor: torch.Tensor, length: int, longest: int) -> torch.Tensor:
    """One row goes on to the end, and the others end as they did: where a batch is padded to its longest row, one row is that."""
    if tensor.dim() not in (2, 3) or tensor.shape[1] != length or length >= longest:
        return tensor
    more = tensor[:, -1:].expand(-1, longest - length, *tensor.shape[2:]).clone()
    more[:1] = tensor[:1, :1]
    return torch.cat((tensor, more), dim=1)


def _is_of_whole_numbers(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        yield from (tensor for value in batch.values() for tensor in _tensors(value))
    elif isinstance(batch, (list, tuple)):
        yield from (tensor for value in batch for tensor in _tensors(value))


def _with_tensors(batch: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The batch with other tensors; what maps names to them is changed in place, whatever class it has."""
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, MutableMapping):
        for name, value in list(batch.items()):
            batch[name] = _with_tensors(value, change)
    elif isinstance(batch, list):
        return [_with_tensors(value, change) for value in batch]
    elif isinstance(batch, tuple):
        changed = [_with_tensors(value, change) for value in batch]
        return type(batch)(*changed) if hasattr(batch, "_fields") else tuple(changed)
    return batch


def _progress(iterator: Any) -> tuple[int, int]:
    """How many batches of how many a data loader has given; zeros where it does not say."""
    try:
        return batches_given(iterator), len(iterator)
    except TypeError:  # a stream of data has no length
        return 0, 0
