"""Reading a pickle from a stranger: plain containers, numbers and text; nothing that could run."""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn


class HostilePickleError(ValueError):
    """The pickle asks for more than data."""


class _PlainUnpickler(pickle.Unpickler):
    """Knows no classes and no functions, so a pickle has nothing to call."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise HostilePickleError(f"it asks for {module}.{name}; a snapshot holds only numbers, text, lists and dictionaries")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise HostilePickleError("it refers to objects outside the file")


def unpickle_plain(data: bytes) -> Any:
    """The lists and dictionaries in a pickle; ``ValueError`` if it is damaged or holds anything else."""
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except HostilePickleError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"{type(error).__name__}: {error}") from error
