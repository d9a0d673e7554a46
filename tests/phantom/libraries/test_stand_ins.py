"""Packages that are answered for where they are not installed: who finds them, and who does not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import runpy
import sys

import pytest
import torch
from helpers.phantom_worlds import phantom

from memfit.phantom import libraries
from memfit.phantom.current import NoPredictionError
from memfit.phantom.libraries.stand_ins import VARIABLE

absent = [
    stand_in
    for stand_in in libraries.STAND_INS
    if stand_in.package not in sys.modules and importlib.util.find_spec(stand_in.package) is None
]


@pytest.mark.parametrize("stand_in", absent, ids=lambda stand_in: stand_in.package)
def test_all_its_modules_can_be_imported_and_are_gone_afterwards(stand_in):
    with phantom():
        for name in stand_in.modules:
            module = importlib.import_module(name)
            assert sys.modules[name] is module
    assert not [name for name in sys.modules if name.partition(".")[0] == stand_in.package]
    assert importlib.util.find_spec(stand_in.package) is None


def run(tmp_path, source: str) -> dict[str, object]:
    script = tmp_path / "train.py"
    script.write_text(source)
    return runpy.run_path(str(script))


@pytest.mark.skipif(not any(stand_in.package == "flash_attn" for stand_in in absent), reason="flash_attn is installed here")
class TestFlashAttn:
    def test_a_plain_import_is_answered_and_named(self, tmp_path):
        with phantom() as world:
            found = run(tmp_path, "from flash_attn import flash_attn_func\nfrom flash_attn.bert_padding import unpad_input\n")
            assert callable(found["flash_attn_func"])
        said = [sentence for sentence in world.assumptions.sentences() if "flash_attn" in sentence]
        assert len(said) == 1
        assert said[0].startswith("flash_attn is not installed here")

    def test_a_script_that_can_do_without_goes_on_without_and_that_is_named(self, tmp_path):
        source = "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n"
        with phantom() as world:
            assert run(tmp_path, source)["flash_attn"] is None
        assert any("train.py:2 goes on without it" in sentence for sentence in world.assumptions.sentences())

    def test_unless_the_user_says_that_it_is_installed(self, tmp_path, monkeypatch):
        monkeypatch.setenv(VARIABLE, "apex, flash_attn")
        source = "try:\n    import flash_attn\nexcept ImportError:\n    flash_attn = None\n"
        with phantom():
            assert run(tmp_path, source)["flash_attn"] is not None

    def test_an_import_whose_error_would_be_raised_again_is_answered(self, tmp_path):
        source = "try:\n    import flash_attn\nexcept ImportError as error:\n    raise RuntimeError('install it') from error\n"
        with phantom():
            assert run(tmp_path, source)["flash_attn"] is not None

    def test_checks_find_it(self):
        with phantom():
            assert importlib.util.find_spec("flash_attn") is not None
            assert importlib.metadata.version("flash-attn") == importlib.metadata.version("flash_attn")
            assert "flash_attn" in importlib.metadata.packages_distributions()
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("flash_attn")

    def test_what_does_not_exist_is_not_found(self):
        with phantom(), pytest.raises(ModuleNotFoundError):
            importlib.import_module("flash_attn.nowhere")

    def test_its_functions_refuse_outside(self):
        with phantom():
            from flash_attn import flash_attn_func
        with pytest.raises(NoPredictionError):
            flash_attn_func(*(torch.ones(1, 2, 1, 8) for _ in range(3)))


def test_libraries_that_switch_unasked_do_not_find_apex():
    if importlib.util.find_spec("apex"):
        pytest.skip("apex is installed here")
    with phantom():
        assert importlib.util.find_spec("apex") is None
        from apex.normalization import FusedRMSNorm

        assert FusedRMSNorm(8).weight.shape == (8,)


def test_a_package_that_is_installed_is_the_real_one(tmp_path, monkeypatch):
    (tmp_path / "xformers").mkdir()
    (tmp_path / "xformers" / "__init__.py").write_text("real = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        with phantom():
            import xformers

            assert xformers.real
        assert "xformers" in sys.modules
    finally:
        sys.modules.pop("xformers", None)


@pytest.mark.skipif(not any(stand_in.package == "flash_attn" for stand_in in absent), reason="flash_attn is installed here")
class TestPackagesThatSwitchUnasked:
    SOURCE = "import importlib.metadata\nimport importlib.util\ntry:\n    found = importlib.metadata.version('flash-attn')\n"
    SOURCE += "except importlib.metadata.PackageNotFoundError:\n    found = None\nspec = importlib.util.find_spec('flash_attn')\n"

    def ask(self, tmp_path, name):
        (tmp_path / "asking.py").write_text(self.SOURCE)
        return runpy.run_path(str(tmp_path / "asking.py"), run_name=name)

    def test_do_not_find_it(self, tmp_path):
        with phantom():
            asked = self.ask(tmp_path, "xformers.ops")
            assert (asked["found"], asked["spec"]) == (None, None)
            assert self.ask(tmp_path, "transformers.utils")["found"] is not None

    def test_unless_the_user_says_that_it_is_installed(self, tmp_path, monkeypatch):
        monkeypatch.setenv(VARIABLE, "flash_attn")
        with phantom():
            asked = self.ask(tmp_path, "transformer_engine.pytorch")
            assert asked["found"] is not None
            from flash_attn.flash_attn_interface import _flash_attn_backward, _flash_attn_forward, flash_attn_gpu

            query = torch.empty(2, 64, 8, 16, dtype=torch.bfloat16, device="cuda")
            out, sums, _, _ = _flash_attn_forward(query, query, query, 0.0, 1.0, causal=True)
            assert (out.shape, sums.shape) == (query.shape, (2, 8, 64))
            assert _flash_attn_backward(out, query, query, query, out, sums, query, query, query).shape == (2, 8, 128)
            assert callable(flash_attn_gpu.varlen_fwd)
