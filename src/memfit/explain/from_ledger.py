"""A ledger at the moment at which memory ran out.

::

    a run that ended so    everything up to the error, then a request for what the error says was asked for
    any other run          everything; where it runs out on the GPU that is named, the replay says

What the allocator counted as in use but the ledger never saw (libraries' workspaces, tensors it was not told of) is taken to have
been there from the beginning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from memfit.allocator import Requests, recorded_settings, requests_from_ledger
from memfit.allocator import replay as replay_requests
from memfit.allocator.sizing import largest_request
from memfit.analysis import find_course
from memfit.errors import ConfigError
from memfit.explain.live_blocks import hold
from memfit.explain.scene import Scene
from memfit.hardware import Gpu, find_gpu
from memfit.ledger import Device, EventKind, Failure, Ledger
from memfit.ledger.columns import running_at
from memfit.ledger.cutting import cut_at_failure
from memfit.ledger.schema import Blocks, Events
from memfit.units import UNIT_BYTES

_ROUNDING: Final = 0.005
"""Messages have two digits after the point."""


def scene_from_ledger(ledger: Ledger, gpu: str | None = None) -> Scene:
    """Where the run ran out of memory, or where it would on a GPU."""
    if ledger.info.failure:
        return _recorded_failure(ledger, find_gpu(gpu) if gpu is not None else None)
    gpu = gpu or ledger.info.gpu or None
    if gpu is None:
        raise ConfigError("this run did not run out of memory: name a GPU to see whether it would there, with --gpu A100-40GB")
    return _replayed(ledger, requests_from_ledger(ledger), find_gpu(gpu))


# -- a run that ran out ------------------------------------------------------------------------------------------------------


def _recorded_failure(ledger: Ledger, gpu: Gpu | None) -> Scene:
    failure = ledger.info.failure
    ledger, device = _device_of(cut_at_failure(ledger), failure)
    if failure.needed_bytes:
        ledger = _with_request(ledger, largest_request(failure.needed_bytes), device, failure.op)
    requests = requests_from_ledger(ledger, ledger.devices[device].name)
    failed = len(requests) - 1 if failure.needed_bytes else None
    unknown = _unknown_bytes(requests, failed, failure)
    if unknown:
        # What the ledger never saw is taken to have been there from the beginning.
        requests, failed = requests.insert(0, size=unknown, event=-1), None if failed is None else failed + 1
    notes: tuple[str, ...] = ("what would have come after the failure is not known",)
    if gpu is not None:
        return replace(_replayed(ledger, requests, gpu, unknown), future_known=False, notes=notes)
    capacity, settings = failure.capacity, recorded_settings(requests)
    if failure.limit_bytes is not None and failure.total_bytes:
        settings = replace(settings, per_process_memory_fraction=failure.limit_bytes / failure.total_bytes)
    elif failure.total_bytes is None:
        settings = replace(settings, per_process_memory_fraction=None)
    if failed is None or capacity is None:
        notes += ("the error does not say what was asked for and what there was, so nothing can be tried",)
    return Scene(
        requests=requests,
        settings=settings,
        capacity=capacity,
        total_memory=failure.total_bytes,
        ran_out=True,
        failed=failed if capacity is not None else None,
        asked=failure.needed_bytes,
        future_known=False,
        holdings=hold(ledger, device, len(ledger.events) - 1 - bool(failure.needed_bytes), failure.op, unknown),
        notes=notes,
        course=find_course(ledger, device),
        covered=ledger.info.covered,
        about=ledger.info.asked,
    )


def _device_of(ledger: Ledger, failure: Failure) -> tuple[Ledger, int]:
    """The number of the device that ran out, which the ledger may never have heard of."""
    if not failure.device and ledger.main_device is not None:
        return ledger, ledger.main_device
    names, name = [device.name for device in ledger.devices], failure.device or "cuda:0"
    if name in names:
        return ledger, names.index(name)
    return replace(ledger, devices=(*ledger.devices, Device.from_name(name))), len(names)


def _with_request(ledger: Ledger, size: int, device: int, op: str) -> Ledger:
    """The ledger with one more event at its end: a block that comes to be in what runs then."""
    scope = int(running_at(ledger, np.array([len(ledger.events) - 1]))[0])
    here = np.flatnonzero(ledger.blocks.device == device)
    stream = int(ledger.blocks.stream[here[np.argmax(ledger.birth[here])]]) if len(here) else 0
    time_ns = int(ledger.events.time_ns.max(initial=0))
    event = Events.from_rows([int(EventKind.ALLOC), len(ledger.blocks), size, time_ns])
    block = Blocks.from_rows([device, stream, len(ledger.strings), scope])
    return replace(
        ledger,
        events=Events.concatenate([ledger.events, event]),
        blocks=Blocks.concatenate([ledger.blocks, block]),
        strings=(*ledger.strings, op),
    )


def _unknown_bytes(requests: Requests, failed: int | None, failure: Failure) -> int:
    """What the allocator counted as allocated beyond what the ledger knows of, if it is more than the message's rounding."""
    if failure.allocated_bytes is None:
        return 0
    known = replay_requests(requests).allocated[: len(requests) if failed is None else failed]
    unknown = failure.allocated_bytes - (int(known[-1]) if len(known) else 0)
    unit = max((size for size in UNIT_BYTES.values() if size <= failure.allocated_bytes), default=1)
    return unknown if unknown > 2 * _ROUNDING * unit else 0


# -- a run that would run out ------------------------------------------------------------------------------------------------


def _replayed(ledger: Ledger, requests: Requests, gpu: Gpu, unknown_bytes: int = 0) -> Scene:
    """Where the replay runs out on a GPU, if it does."""
    if not len(requests):
        raise ConfigError("nothing was allocated while this run was recorded, so there is nothing that could run out of memory")
    settings, capacity = recorded_settings(requests), gpu.capacity(*ledger.info.communicators)
    ran_out = replay_requests(requests, settings, capacity=capacity, total_memory=gpu.usable_bytes).out_of_memory
    event = len(ledger.events) - 1 if ran_out is None else max(ran_out.event, 0)
    block = int(ledger.events.subject[ran_out.event]) if ran_out is not None and ran_out.event >= 0 else -1
    device = int(ledger.blocks.device[ledger.events.subject[requests.event[-1]]]) if len(requests) else 0
    return Scene(
        requests=requests,
        settings=settings,
        capacity=capacity,
        total_memory=gpu.usable_bytes,
        gpu=gpu.name,
        ran_out=ran_out is not None,
        failed=None if ran_out is None else ran_out.request,
        asked=None if ran_out is None else ran_out.needed,
        future_known=True,
        holdings=hold(ledger, device, event - 1, ledger.strings[ledger.blocks.op[block]] if block >= 0 else "", unknown_bytes),
        notes=requests.warnings,
        course=find_course(ledger, device),
        covered=ledger.info.covered,
        about=ledger.info.asked,
    )
