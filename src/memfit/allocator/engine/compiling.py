"""Compiling the engine in C: when the package is built, and in a checkout whenever its source has changed.

Uses nothing but the standard library and a C compiler: the build hook runs this file before anything else is installed.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LIBRARY = HERE / ("_engine.dll" if sys.platform == "win32" else "_engine.so")


def source_digest() -> str:
    """Names the source: a library says which it was made from."""
    digest = hashlib.sha256()
    for path in sorted((HERE / "csrc").glob("*.[ch]")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def in_checkout() -> bool:
    """Is this file where it is written, and not where it is installed?"""
    return (HERE.parents[3] / "hatch_build.py").exists()


def compile_engine(library: Path = LIBRARY) -> str:
    """Builds the library, by default next to this file. Gives what stood in the way, empty if nothing did."""
    compiler = (
        shlex.split(os.environ.get("CC", "")) or [found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))][:1]
    )
    if not compiler:
        return "there is no C compiler"
    position_independent = [] if sys.platform == "win32" else ["-fPIC"]
    define = f'-DMEMFIT_SOURCE="{source_digest()}"'
    made = library.with_suffix(f".{os.getpid()}")
    command = [*compiler, "-O2", "-shared", *position_independent, define, str(HERE / "csrc" / "run.c"), "-o", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return f"{shlex.join(command)} failed: {done.stderr.strip()}"
        # All at once: another process may be loading it.
        made.replace(library)
    except OSError as error:
        return f"{shlex.join(command)} could not be run: {error}"
    return ""
