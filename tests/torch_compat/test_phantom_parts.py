"""Each private part of torch that the phantom world leans on is where it is looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memfit.errors import UnsupportedTorchError
from memfit.torch_compat.versions import need


def test_a_missing_part_is_named():
    with pytest.raises(UnsupportedTorchError, match=r"torch\._no_such_part"):
        need(torch, "_no_such_part")


NEWER_TORCH = """
import sys
import torch

del {owner}.{name}
from memfit.cli import main

sys.exit(main(["run", sys.argv[1]]))
"""


@pytest.mark.parametrize(("owner", "name"), [("torch._C", "_swap_tensor_impl"), ("torch.autograd.graph", "_engine_run_backward")])
def test_a_torch_without_some_part_is_refused_in_a_line(owner: str, name: str, tmp_path: Path):
    """As a torch that is newer than memfit would be, if it has moved that part."""
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.ones(1, device='cuda')\n")
    code = NEWER_TORCH.format(owner=owner, name=name)
    done = subprocess.run([sys.executable, "-c", code, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"memfit: error: memfit needs {owner}.{name}, which torch {torch.__version__} does not have")
    assert len(done.stderr.splitlines()) == 1
