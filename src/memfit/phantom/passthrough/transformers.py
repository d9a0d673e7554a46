"""Hugging Face transformers: what it asks once and keeps, and what it takes for a compiler at work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memfit.phantom.current import current
from memfit.phantom.libraries.stand_ins import answered_for
from memfit.phantom.tensors.tensor_annotations import CONSTANT
from memfit.torch_compat.patches import Patches


def install(patches: Patches) -> None:
    patches.when_imported("transformers.utils.import_utils", lambda module: _say_no(patches, module))
    patches.when_imported("transformers.utils.import_utils", lambda module: _list_packages_anew(patches, module))
    patches.when_imported("transformers.modeling_flash_attention_utils", lambda module: _load_flash_anew(patches, module))
    patches.when_imported("transformers.generation.utils", lambda module: _go_on_with_beams(patches, module))
    patches.when_imported("transformers.models.whisper.generation_whisper", lambda module: _hear_no_timestamps(patches, module))


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


def _go_on_with_beams(patches: Patches, module: Any) -> None:
    """A search with beams ends where its scores say so, which only data can tell: here it goes on to the last token allowed."""
    name = "_beam_search_has_unfinished_sequences"
    if hasattr(module.GenerationMixin, name):
        ask = getattr(module.GenerationMixin, name)
        patches.replace(module.GenerationMixin, name, staticmethod(_until_the_last_token(ask)))


def _until_the_last_token(ask: Callable[..., Any]) -> Callable[..., Any]:
    def has_unfinished(improvable: Any, finished: Any, at_the_end: Any, *args: Any, **kwargs: Any) -> Any:
        answer = ask(improvable, finished, at_the_end, *args, **kwargs)  # its operators run on the GPU, too
        if at_the_end.is_cuda:
            setattr(answer, CONSTANT, not getattr(at_the_end, CONSTANT, None))
            current().say(
                "generate: beams were taken to go on to the last token allowed, as only data can tell whether they end before"
            )
        return answer

    return has_unfinished


def _hear_no_timestamps(patches: Patches, module: Any) -> None:
    """Whisper cuts what it wrote for a window of 30 s where two timestamps follow each other, which only data can tell: here it is
    one segment, and the next window begins where this one ends."""
    name = "_retrieve_segment"
    if hasattr(module.WhisperGenerationMixin, name):
        retrieve = getattr(module.WhisperGenerationMixin, name)
        patches.replace(module.WhisperGenerationMixin, name, staticmethod(_as_one_segment(retrieve)))


def _as_one_segment(retrieve: Callable[..., Any]) -> Callable[..., Any]:
    def retrieve_segment(*, seek_sequence: Any, **kwargs: Any) -> Any:
        if not seek_sequence.is_cuda:
            return retrieve(seek_sequence=seek_sequence, **kwargs)
        known = getattr(seek_sequence, CONSTANT, None)
        setattr(seek_sequence, CONSTANT, 0)  # the first token, and no timestamp: they are the last ones
        current().say("generate: Whisper was taken to write no timestamps, so that each window of 30 s is one segment")
        try:
            return retrieve(seek_sequence=seek_sequence, **kwargs)
        finally:
            setattr(seek_sequence, CONSTANT, known)

    return retrieve_segment
