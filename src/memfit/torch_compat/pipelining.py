"""Pipeline stages: what one tells the next about the tensors that it will send.

Before its first step a stage must know what it will receive. Torch 2.12 has a *static* way (the script has said it all, by
``input_args`` and ``output_args``) and a *dynamic* one (each stage runs once on a tensor as its neighbour described it, forward
and, for gradients, backward). Older stages ran forward only, without gradients, and took every tensor of floating numbers to need a
gradient; where one of those is installed, it asks and tells by ``recv_object_list`` and ``send_object_list``.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed

from memfit.torch_compat.patches import Patches
from memfit.torch_compat.versions import installed_torch, need_in

STAGES = "torch.distributed.pipelining.stage"
SCHEDULES = "torch.distributed.pipelining.schedules"
"""Modules in which stages and schedules live."""

GRADIENTS_INFERRED_SINCE = (2, 12)
"""The first torch whose stages run backward to learn about gradients."""

VOTES_RENAMED_SINCE = (2, 15)
"""The first torch whose schedules vote in ``_initialize_pipeline_distributed_state``."""

Ask = Callable[[Any, int], Any]
"""``ask(stage, index of the stage that sends)``: what that one tells about its outputs, as torch writes it."""
Tell = Callable[[Any, Any], None]
"""``tell(stage, what it tells the next)``."""


def need_everything() -> None:
    """Asks for each part that this file uses only where a pipeline is used."""
    if installed_torch() < GRADIENTS_INFERRED_SINCE:
        need_in(STAGES, "PipelineStage._shape_inference")
        return
    need_in(STAGES, "PipelineStage._recv_meta", "PipelineStage._send_meta", "PipelineStage._forward_metadata_inference")
    need_in(STAGES, "PipelineStage._backward_metadata_inference", "PipelineStage._post_metadata_inference_cleanup")
    need_in(SCHEDULES, f"_PipelineSchedule.{_vote_name()}")
    need_in(SCHEDULES, "get_schedule_class")


def infers_gradients(stages: Any) -> bool:
    """Is the installed torch one whose stages run backward to learn about gradients?"""
    return hasattr(stages.PipelineStage, "_recv_meta")


def answer_older_stages(patches: Patches, stages: Any, ask: Ask, tell: Tell) -> None:
    """The same as ``answer_stages``, for stages that run forward only."""
    asking: list[Any] = []

    def infer(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(stage: Any, *args: Any, **kwargs: Any) -> Any:
            asking.append(stage)
            try:
                return original(stage, *args, **kwargs)
            finally:
                asking.pop()

        return call

    class Mail:
        """``torch.distributed`` as the module of stages sees it."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.distributed, name)

        def recv_object_list(self, objects: list[Any], *args: Any, **kwargs: Any) -> None:
            objects[0] = ask(asking[-1], asking[-1].stage_index - 1)

        def send_object_list(self, objects: list[Any], *args: Any, **kwargs: Any) -> None:
            tell(asking[-1], objects[0])

    patches.wrap(stages.PipelineStage, "_shape_inference", infer)
    patches.replace(stages, "dist", Mail())


def answer_stages(patches: Patches, stages: Any, ask: Ask, tell: Tell) -> None:
    """What a stage asks its neighbours is answered by ``ask``; what it sends them is told to ``tell``."""
    kind = stages.PipelineStage

    def receive(stage: Any, source: int) -> Any:
        if source > stage.stage_index:
            return stages._StageBackwardMeta(backward_metas=_of_gradients(stage._stage_meta.outputs))
        return ask(stage, source)

    patches.replace(kind, "_recv_meta", receive)
    patches.replace(kind, "_send_meta", lambda stage, meta, to: tell(stage, meta) if to > stage.stage_index else None)


def vote_alone(patches: Patches, schedules: Any) -> None:
    """Stages vote on whether the script has said all shapes; the others are taken to vote as those of this rank do."""
    modes = getattr(schedules, "InferenceMode", None)
    if modes is None:  # an older torch: no votes
        return

    def vote(schedule: Any, stages: list[Any], has_backward: bool, _transport: bool) -> None:
        by_hand = [stage for stage in stages if isinstance(stage, schedules.PipelineStage)]
        is_dynamic = any(modes.needs_dynamic(stage._user_meta, has_backward) for stage in by_hand)
        for stage in by_hand:
            stage._inference_mode = modes.DYNAMIC if is_dynamic else modes.STATIC

    patches.replace(schedules._PipelineSchedule, _vote_name(), vote)


def _vote_name() -> str:
    """The method of schedules in which stages vote, and connect to their neighbours."""
    return "_warmup_p2p" if installed_torch() < VOTES_RENAMED_SINCE else "_initialize_pipeline_distributed_state"


def infer_as_before(patches: Patches, stages: Any) -> None:
    """As torch did it before its stages ran backward to learn about gradients."""
    kind = stages.PipelineStage

    def with_gradients(original: Callable[..., None]) -> Callable[..., None]:
        def make(stage: Any, *args: Any, **kwargs: Any) -> None:
            original(stage, *args, **kwargs)
            given = stage._user_meta
            given.inputs, given.outputs = _learning(given.inputs), _learning(given.outputs)

        return make

    def forward_only(original: Callable[..., Any]) -> Callable[..., Any]:
        def infer(stage: Any, args: Any, kwargs: Any = None, has_backward: bool = False) -> Any:
            told = original(stage, args, kwargs, False)
            stage._fwd_outputs_for_bwd_meta = stage._fwd_inputs_for_bwd_meta = stage._fwd_kwargs_tensors_for_bwd_meta = None
            meta = stage._stage_meta
            meta.inputs, meta.outputs = _learning(meta.inputs), _learning(meta.outputs)
            return None if told is None else type(told)(forward_metas=meta.outputs)

        return infer

    def derive(stage: Any, *args: Any, **kwargs: Any) -> Any:
        meta = stage._stage_meta
        meta.input_grads = _of_gradients(meta.inputs)
        meta.output_grads = None if stage.is_last else _of_gradients(meta.outputs)
        return stages._StageBackwardMeta(backward_metas=meta.input_grads)

    patches.wrap(kind, "__init__", with_gradients)
    patches.wrap(kind, "_forward_metadata_inference", forward_only)
    patches.replace(kind, "_backward_metadata_inference", derive)
    patches.replace(kind, "_post_metadata_inference_cleanup", lambda stage: None)


def given_inputs(stage: Any, stages: Any) -> Any | None:
    """What the script itself says that a stage receives (``input_args``), as its neighbour would have told it."""
    given = stage._user_meta.inputs if hasattr(stage, "_user_meta") else None  # older stages ask only where nothing was said
    return None if given is None else stages._StageForwardMeta(forward_metas=_learning(given))


def note_stages(patches: Patches, stages: Any, note: Callable[[Any], None]) -> None:
    """Calls ``note`` with every stage that is made, by hand or by splitting a model."""

    def noting(original: Callable[..., None]) -> Callable[..., None]:
        def make(stage: Any, *args: Any, **kwargs: Any) -> None:
            original(stage, *args, **kwargs)
            note(stage)

        return make

    patches.wrap(stages._PipelineStageBase, "__init__", noting)


def first_rank(stage: Any) -> int:
    """The rank of the world that holds the first stage of a stage's pipeline."""
    group = stage.group or torch.distributed.distributed_c10d._get_default_group()
    return int(torch.distributed.get_global_rank(group, stage.stage_index_to_group_rank[0]))


def _learning(metas: Any) -> Any:
    """Every tensor of floating numbers has a gradient."""
    if metas is None:
        return None
    return tuple(dataclasses.replace(meta, requires_grad=meta.dtype.is_floating_point) for meta in metas)


def _of_gradients(metas: Any) -> Any:
    """Gradients look like what they are the gradients of."""
    return tuple(dataclasses.replace(meta, requires_grad=False) if meta.requires_grad else None for meta in metas)


# -- in which order a schedule works ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _StageOfNothing:
    """As much of a stage as a schedule asks for when it makes its order."""

    stage_index: int
    num_stages: int
    group_size: int
    group_rank: int = 0
    is_first: bool = False
    is_last: bool = False
    has_backward: bool = True
    submod: Any = dataclasses.field(default_factory=torch.nn.Identity)
    stage_index_to_group_rank: Any = None


def orders_of(torch_name: str, num_ranks: int, num_microbatches: int, stages_a_rank: int) -> list[list[tuple[int, str, int]]]:
    """What each rank does in its order: the stage, ``F``, ``B``, ``I`` (backward of inputs) or ``W`` (of weights), the microbatch.

    For schedules with several stages a rank, which run the order that they have made. Those with one stage do not: the list that
    ``Schedule1F1B`` of torch 2.13 makes counts the last rank's microbatches from one.
    """
    schedules = importlib.import_module(SCHEDULES)
    stages = [_StageOfNothing(turn * num_ranks, num_ranks * stages_a_rank, num_ranks) for turn in range(stages_a_rank)]
    made = schedules.get_schedule_class(torch_name)(stages, num_microbatches, loss_fn=lambda outputs, labels: outputs)
    found = made.pipeline_order
    return [[leaf for action in found[rank] if action is not None for leaf in _leaves(action)] for rank in range(num_ranks)]


def _leaves(action: Any) -> Iterator[tuple[int, str, int]]:
    """An action that is several at once, one after the other; what moves no microbatch is left out."""
    if action.sub_actions is not None:
        for each in action.sub_actions:
            yield from _leaves(each)
    elif action.computation_type.value in ("F", "B", "I", "W"):
        yield action.stage_index, action.computation_type.value, action.microbatch_index
