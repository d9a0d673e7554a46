"""Cells that were predicted before, on disk.

::

    ~/.cache/memfit/cells/3f/3f9c...json      {"sources": {path: hash, ...}, "figures": {...}}

A cell's name is the hash of all that went into it: its inputs, the versions of memfit (with its sources), torch, transformers and
Python. The user's own files are not in the name but inside, because which files a function imports is known only afterwards; a
cell whose files have changed since does not count. Failures are not kept, but by a search, which would meet them again each time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import tempfile
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import memfit
from memfit.job import CellResult
from memfit.reading import hash_file, read_regular


def default_folder() -> Path | None:
    """As the platform wants it: ``$XDG_CACHE_HOME/memfit``, or ``~/.cache/memfit``; ``None`` for a user without a home."""
    if folder := os.environ.get("XDG_CACHE_HOME"):
        return Path(folder, "memfit")
    try:
        return Path.home() / ".cache" / "memfit"
    except RuntimeError:  # neither HOME nor an entry in passwd
        return None


def open_cache(wanted: bool | Path) -> CellCache | None:
    """The user's cache, one in another folder, or none."""
    folder = wanted if isinstance(wanted, Path) else default_folder() if wanted else None
    return None if folder is None else CellCache(folder)


class CellCache:
    """Results by what went in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "cells"

    def find(self, job: dict[str, Any]) -> CellResult | None:
        """``None`` where nothing is known, or what is known is torn or out of date."""
        try:
            entry = json.loads(read_regular(self._path(job)))
            if any(hash_file(Path(path)) != known for path, known in entry["sources"].items()):
                return None
            return CellResult.from_json(entry["figures"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def find_failure(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """The answer of a job that could not be predicted, where ``keep_failure`` was told of it."""
        try:
            entry = json.loads(read_regular(self._path(job)))
            return {"error": str(entry["error"]), "details": str(entry["details"])}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None

    def keep(self, job: dict[str, Any], answer: dict[str, Any]) -> None:
        """Whole or not at all. A disk that takes no more costs the next comparison time, and this one nothing."""
        self._write(job, {"sources": answer["sources"], "figures": answer["figures"]})

    def keep_failure(self, job: dict[str, Any], answer: dict[str, Any]) -> None:
        """Of a model by name, which fails again as long as the versions stay the same. A user's files may have changed since, and a
        process that died may live the next time: those are not kept."""
        self._write(job, {"error": answer["error"], "details": answer["details"]})

    def _write(self, job: dict[str, Any], entry: dict[str, Any]) -> None:
        path = self._path(job)
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(entry, file)
                os.replace(name, path)
            finally:
                Path(name).unlink(missing_ok=True)

    def _path(self, job: dict[str, Any]) -> Path:
        text = json.dumps([job, versions()], sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()
        return self._folder / name[:2] / f"{name}.json"


@functools.cache
def versions() -> dict[str, str]:
    """Of all that takes part, torch unimported."""
    return {
        "memfit": memfit.__version__,
        "sources": _fingerprint(Path(memfit.__file__).parent),
        "torch": _version("torch"),
        "transformers": _version("transformers"),
        "python": platform.python_version(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _fingerprint(folder: Path) -> str:
    """The hash of a package's sources, so that a change of memfit gives new figures."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()
