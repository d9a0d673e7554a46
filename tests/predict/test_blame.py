"""Whose error it is: only where memfit may be at fault is a report asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from memfit.cli import main

OURS = "please report it. "

CASES = {
    "a missing package": ("import no_such_package.part", "no_such_package is not installed"),
    "a part that a package lacks": (
        "import json.no_such_part",
        "json is installed where memfit runs, but json.no_such_part is not",
    ),
    "a package whose Python is enough": ("import transformer_engine.pytorch", "pip install transformer_engine"),
    "a message about such a package": (
        "raise ImportError('Transformer Engine is not installed. Please install it.')",
        "pip install transformer_engine",
    ),
    "more GPUs than there are": (
        "raise RuntimeError('You requested gpu: [0, 1, 2, 3]\\n But your machine only has: [0]')",
        "--nproc 4",
    ),
    "a name that a package lacks": ("from json import no_such_name", "is another version needed?"),
    "the script's own error": ("def check():\n    raise ValueError('mine')\ncheck()", "raised by train.py:3"),
    "an error in the script's own module": (
        "class Net(torch.nn.Module):\n    def forward(self, x):\n        raise ValueError('mine')\n"
        "torch.nn.Sequential(Net()).cuda()(torch.ones(2, device='cuda'))",
        "raised by train.py:4",
    ),
    "an error in a hook of backward": (
        "x = torch.ones(2, device='cuda', requires_grad=True)\nx.register_hook(lambda grad: 1 / 0)\nx.sum().backward()",
        "raised by train.py:3",
    ),
    "an error of Python's own library": ("import json\njson.loads('{')", "raised by train.py:3"),
    "an error of an operator": ("x = torch.ones(2, 3, device='cuda')\nx @ x", "torch raises it for train.py:3"),
    "an error of torch": ("torch.nn.Linear(2, 2).cuda().no_such_part", "torch raises it for train.py:2"),
    "a script that Python cannot read": ("def broken(:\n    pass", "Python cannot read train.py"),
    "a GPU that the process does not see": ("torch.cuda.set_device(3)", "with --nproc"),
    "a compiled module that asks for data": ("torch._C.TensorBase.data_ptr(torch.ones(2, device='cuda'))", "register_fake"),
    "what needs a GPU": ("torch.ones(2, device='cuda').__dlpack__()", "or do the work in PyTorch."),
}


@pytest.mark.parametrize("case", CASES)
def test_the_advice_says_whose_error_it_is(case: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    code, advice = CASES[case]
    Path("train.py").write_text(f"import torch\n{code}\n")
    assert main(["run", "train.py"]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert advice in last
    assert (OURS in last) == (advice is OURS)


def test_an_error_in_memfits_files_is_ours(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr("memfit.phantom.tensors.dispatch_cache.DispatchCache.answer")
    Path("train.py").write_text("import torch\ntorch.ones(2, device='cuda') + 1\n")
    assert main(["run", "train.py"]) == 2
    assert OURS in capsys.readouterr().err


def test_the_users_lines_and_shapes_come_alone(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch\nlayer = torch.nn.Linear(4, 2).cuda()\ndef forward(x):\n    return layer(x)\n"
        "forward(torch.ones(8, 3, device='cuda'))\n"
    )
    assert main(["run", "train.py"]) == 2
    lines = [line.strip() for line in capsys.readouterr().err.splitlines()]
    shown = lines[lines.index("Traceback (most recent call last):") + 1 :]
    assert [line for line in shown if line.startswith("File ")] == [
        'File "train.py", line 5, in <module>',
        'File "train.py", line 4, in forward',
    ]
    assert "layer is Linear(in_features=4, out_features=2, bias=True)" in shown
    assert "x is [8, 3] float32 on cuda" in shown


def test_an_argument_that_is_missing_names_the_flag(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("def build(width):\n    pass\n")
    assert main(["predict", "train.py:build"]) == 2
    assert "--axis width=VALUE" in capsys.readouterr().err.strip().splitlines()[-1]
