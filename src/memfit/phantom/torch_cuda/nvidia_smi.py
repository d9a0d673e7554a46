"""``nvidia-smi`` for scripts that start it, where there is none: a small program at the end of the path that tells of the GPU."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from memfit.phantom.target import Target
from memfit.torch_compat.patches import Patches
from memfit.units import MIB

NAME: Final = "nvidia-smi"

_PROGRAM: Final = """#!{python} -S
import sys
known, count = {known!r}, {count!r}
asked = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--query-gpu=")]
plain = any("noheader" in word for word in sys.argv)
units = not any("nounits" in word for word in sys.argv)
if asked:
    fields = [field.strip() for field in asked[0].split(",")]
    if not plain:
        print(", ".join(fields))
    for index in range(count):
        found = [str(index) if field == "index" else known.get(field, "[N/A]") for field in fields]
        print(", ".join(value if units else value.partition(" ")[0] if field.startswith("memory") else value
                        for field, value in zip(fields, found)))
else:
    for index in range(count):
        print(f"GPU {{index}}: {{known['name']}} ({{known['memory.total']}}), predicted")
"""


def install(patches: Patches, target: Target, num_devices: int) -> None:
    """Puts the program at the end of the path. Where no file can be written, there is none, as without a driver."""
    if shutil.which(NAME) is None:
        with suppress(OSError):
            _write_program(patches, target, num_devices)


def _write_program(patches: Patches, target: Target, num_devices: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="memfit-"))
    patches.finally_call(lambda: shutil.rmtree(folder, ignore_errors=True))
    total = target.gpu.usable_bytes // MIB
    known = {
        "name": f"NVIDIA {target.gpu.name}",
        "gpu_name": f"NVIDIA {target.gpu.name}",
        "count": str(num_devices),
        "memory.total": f"{total} MiB",
        "memory.free": f"{total} MiB",
        "memory.used": "0 MiB",
        "utilization.gpu": "0 %",
        "compute_cap": ".".join(map(str, target.capability)),
    }
    program = folder / NAME
    program.write_text(_PROGRAM.format(python=sys.executable, known=known, count=num_devices))
    program.chmod(0o755)
    path = os.environ.get("PATH", os.defpath)
    patches.replace_item(os.environ, "PATH", f"{path}{os.pathsep}{folder}")
