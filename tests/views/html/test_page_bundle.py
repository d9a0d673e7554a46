"""The script and style in the package are what web/ makes; no Node is needed to know."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from helpers import ROOT

WEB, BUILT = ROOT / "web", ROOT / "src" / "memfit" / "views" / "html" / "built"
SERVED = ROOT / "src" / "memfit" / "serve" / "built"


def hash_of_sources(web: Path) -> str:
    own = ["package.json", "package-lock.json", "tsconfig.json", "vite.config.js"]
    paths = sorted([*own, *(f"src/{path.name}" for path in (web / "src").iterdir())])
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path}\n".encode() + (web / path).read_bytes() + b"\n")
    return digest.hexdigest()


@pytest.mark.parametrize("path", [BUILT / "page.js", BUILT / "page.css", SERVED / "serve.js", SERVED / "serve.css"], ids=str)
def test_what_is_built_is_not_stale(path: Path):
    stamp = re.match(r"/\* .*sources sha256:(\w+) \*/", path.read_text(encoding="utf-8"))
    assert stamp is not None
    assert stamp[1] == hash_of_sources(WEB), "web/ has changed since the page was built: run `make page`"


def test_the_proof_can_fail(tmp_path: Path):
    for path in ("package.json", "package-lock.json", "tsconfig.json", "vite.config.js", "src/main.ts"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("a")
    before = hash_of_sources(tmp_path)
    (tmp_path / "src" / "main.ts").write_text("b")
    assert hash_of_sources(tmp_path) != before


def test_the_lock_names_no_registry():
    lock = json.loads((WEB / "package-lock.json").read_text())
    assert all(package.get("integrity") for path, package in lock["packages"].items() if path)
    assert not any("resolved" in package for package in lock["packages"].values())


def test_the_licenses_of_what_is_bundled_go_with_it():
    script = (BUILT / "page.js").read_text(encoding="utf-8")
    assert "Leon Sorokin" in script
    assert "Mike Bostock" in script
    assert "</script" not in script
    assert "<!--" not in script
