"""Hugging Face transformers: what it asks once and keeps, and what it takes for a compiler at work."""

from __future__ import annotations

import functools
from typing import Any

from memfit.phantom.libraries.stand_ins import answered_for
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.when_imported("transformers.utils.import_utils", lambda module: _say_no(patches, module))
    patches.when_imported("transformers.utils.import_utils", lambda module: _list_packages_anew(patches, module))
    patches.when_imported("transformers.modeling_flash_attention_utils", lambda module: _load_flash_anew(patches, module))


def _say_no(patches: Patches, module: Any) -> None:
    """Transformers drops a mask that hides nothing, unless it believes that it is being traced."""
    if hasattr(module, "is_fake_tensor"):
        patches.replace(module, "is_fake_tensor", lambda x: False)


def _list_packages_anew(patches: Patches, module: Any) -> None:
    """It lists what is installed when it is imported: perhaps before there were packages that are answered for."""
    known = getattr(module, "PACKAGE_DISTRIBUTION_MAPPING", None)
    if isinstance(known, dict):
        for package, distribution in answered_for():
            if package not in known:
                patches.replace_item(known, package, [distribution])


def _load_flash_anew(patches: Patches, module: Any) -> None:
    """The functions that it has found stay with it."""
    for name in ("_loaded_implementation", "_flash_fn", "_flash_varlen_fn", "_flash_with_kvcache_fn"):
        if hasattr(module, name):
            patches.replace(module, name, None)
            patches.finally_call(functools.partial(setattr, module, name, None))
