"""Megatron-core: what a rank of a pipeline waits for the stages before it and behind it, which are not there.

Its schedules run as they are, and what a rank receives is there at once. On a cluster the first microbatch has to come through the
stages before a rank, and the last gradients through those before it: with p ranks, m microbatches and v parts of the model on each
rank, a rank waits (p - 1) / (v m) of the time that it computes (arXiv 2104.04473, section 2.2). All stages are taken to be equally
slow.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from memfit.phantom.current import find_world
from memfit.phantom.device.streams import current_stream_number
from memfit.torch_compat.patches import Patches

SCHEDULES = ("forward_backward_pipelining_with_interleaving", "forward_backward_pipelining_without_interleaving")


def install(patches: Patches) -> None:
    patches.when_imported("megatron.core.pipeline_parallel.schedules", lambda module: _wait_in_schedules(patches, module))


def _wait_in_schedules(patches: Patches, module: Any) -> None:
    patches.because("a stage of a pipeline waits for the others")
    for name in SCHEDULES:
        patches.wrap(module, name, functools.partial(_with_waiting, module))


def _with_waiting(module: Any, schedule: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(schedule)
    def run(*, model: Any, num_microbatches: int, **options: Any) -> Any:
        world = find_world()
        if world is None:
            return schedule(model=model, num_microbatches=num_microbatches, **options)
        timeline, stream = world.clock.timeline, current_stream_number()
        began = timeline.arrival(stream)
        result = schedule(model=model, num_microbatches=num_microbatches, **options)
        others = module.parallel_state.get_pipeline_model_parallel_world_size() - 1
        parts = num_microbatches * (len(model) if isinstance(model, list) else 1)
        world.clock.wait_for_ranks((timeline.arrival(stream) - began) * others / parts)
        world.say(
            f"the {others + 1} stages of the pipeline are taken to be equally slow: this rank waits for the others "
            f"{others / parts:.0%} of the time that its own microbatches take"
        )
        return result

    return run
