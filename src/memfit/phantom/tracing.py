"""Libraries that take a tensor without data for a compiler at work, and then take another way than they would on the GPU."""

from __future__ import annotations

from typing import Any

from memfit.phantom.replacing import Replacements


def install(replacements: Replacements) -> None:
    replacements.when_imported("transformers.utils.import_utils", lambda module: _say_no(replacements, module))


def _say_no(replacements: Replacements, module: Any) -> None:
    """Transformers drops a mask that hides nothing, unless it believes that it is being traced."""
    if hasattr(module, "is_fake_tensor"):
        replacements.attribute(module, "is_fake_tensor", lambda x: False)
