"""Libraries that take a tensor without data for a compiler at work, and then take another way than they would on the GPU."""

from __future__ import annotations

from typing import Any

from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.when_imported("transformers.utils.import_utils", lambda module: _say_no(patches, module))


def _say_no(patches: Patches, module: Any) -> None:
    """Transformers drops a mask that hides nothing, unless it believes that it is being traced."""
    if hasattr(module, "is_fake_tensor"):
        patches.replace(module, "is_fake_tensor", lambda x: False)
