"""The user's own files that had a part in a prediction: if one changes, the prediction is out of date."""

from __future__ import annotations

import hashlib
import sys
import sysconfig
from pathlib import Path

from memfit.compare.cell import Inputs
from memfit.reading import read_regular


def hash_file(path: Path) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()


def sources_of(inputs: Inputs, modules: set[str]) -> dict[str, str]:
    """The user's own files that had a part in it, and their hashes: if one changes, the cell is predicted again."""
    paths = {Path(inputs["hf"])} if "hf" in inputs else set()
    paths |= {Path(inputs["function"].rpartition(":")[0])} if "function" in inputs else set()
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    for name in modules:
        path = getattr(sys.modules.get(name), "__file__", None) or ""
        if path.endswith(".py") and not any(path.startswith(folder) for folder in installed) and not name.startswith("memfit."):
            paths.add(Path(path))
    return {str(path.resolve()): hash_file(path) for path in sorted(paths)}
