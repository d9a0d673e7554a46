"""Compiles the allocator's engine when the package is built. Without a C compiler the package is the same, only slower."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENGINE = Path("src/memfit/allocator/engine")


class EngineBuildHook(BuildHookInterface[Any]):
    """Puts the library into the wheel, which then is one for this platform and any Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # By its path: importing the package would need numpy, which is not there while it is built.
        spec = importlib.util.spec_from_file_location("compiling", Path(self.root) / ENGINE / "compiling.py")
        assert spec is not None
        assert spec.loader is not None
        compiling = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiling)
        problem = compiling.compile_engine()
        if problem:
            self.app.display_warning(f"memfit's allocator will run in Python, and slower: {problem}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["artifacts"].append(f"/{ENGINE.as_posix()}/{compiling.LIBRARY.name}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
