"""``type`` of a tensor without data is what it would be of one with data, for those who ask."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from helpers.phantom_worlds import phantom
from torch import nn

ASKS = """
import torch
from torch import nn
weight, x = nn.Linear(2, 2).cuda().weight, torch.ones(2, device="cuda")
types = type(weight) is nn.Parameter, type(x) is torch.Tensor, type(x) == torch.Tensor, type(torch.ones(1)) in (torch.Tensor,)
class Meta(type): pass
class Made(metaclass=Meta): pass
others = type(3) is int, type(int) is type, isinstance(int, type), type(Made) is Meta
others += type("A", (), {}).__name__, type[int], type | None
again = type(weight)(weight.data, requires_grad=False, **vars(weight))
"""


@pytest.mark.parametrize("run", [runpy.run_path, lambda path: vars(__import__(Path(path).stem))])
def test_a_script_and_its_modules_see_the_classes_of_torch(run, tmp_path: Path, monkeypatch):
    script = tmp_path / f"asking_{run.__name__.strip('<>')}.py"
    script.write_text(ASKS)
    monkeypatch.syspath_prepend(tmp_path)
    with phantom():
        found = run(str(script))
        assert all(found["types"]) or run is not runpy.run_path  # a module has its own ``type`` when it has been imported
        assert found["others"] == (True, True, True, True, "A", type[int], type | None)
        assert isinstance(found["again"], nn.Parameter)
        assert not found["again"].requires_grad


def test_a_module_of_others_asks_and_forgets(tmp_path: Path, monkeypatch):
    (tmp_path / "compares_types.py").write_text("import torch\ndef is_plain(x):\n    return type(x) is torch.Tensor\n")
    monkeypatch.syspath_prepend(tmp_path)
    with phantom():
        import compares_types

        x, weight = torch.ones(2, device="cuda"), nn.Parameter(torch.ones(2, device="cuda"))
        assert (compares_types.is_plain(x), compares_types.is_plain(weight)) == (True, False)
    assert "type" not in vars(compares_types)


def test_a_parameter_is_made_again_by_its_class():
    """As accelerate does for models without weights."""
    with phantom():
        weight = nn.Linear(2, 2).cuda().weight
        made = type(weight)(weight.to("meta"), requires_grad=True, **vars(weight))
        assert isinstance(made, nn.Parameter)
        assert made.is_meta
        with pytest.raises(TypeError, match="not no_such_word"):
            nn.Parameter(weight.data, no_such_word=1)
