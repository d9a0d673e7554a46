"""Runs for the page: small, with something of everything."""

from __future__ import annotations

from dataclasses import replace

from memfit.ledger import Category, Ledger, LedgerBuilder, Phase, RunInfo, Work, WorkKind
from memfit.testing import ledger

HOSTILE = "<script>alert(1)</script>"
GPU_INFO = RunInfo(source="predicted", versions={"torch": "2.11"}, gpu="A100-40GB", assumptions=("a bool was taken to be False",))


def training(*, layers: int = 3, steps: int = 2, scale: int = 1) -> Ledger:
    """Training as it is: parameters, activations that pile up and melt away, gradients, optimizer state, temporaries."""
    lines = []
    for i in range(layers):
        lines.append(f"alloc {8 * scale}MiB parameter layers.{i}.mlp.w on cuda:0")
        lines.append(f"alloc {2 * scale}MiB parameter layers.{i}.norm.w on cuda:0")
    lines.append(f"alloc {5 * scale}MiB parameter head.w on cuda:0")
    for step in range(steps):
        lines.append("step")
        lines.append("enter forward .")
        for i in range(layers):
            lines.append(f"enter forward layers.{i}; enter forward layers.{i}.mlp; alloc {6 * scale}MiB act{i} on cuda:0")
            lines.append(f"alloc {3 * scale}MiB tmp on cuda:0; free tmp; exit; exit")
        lines.append("exit; enter backward")
        for i in reversed(range(layers)):
            lines.append(f"enter backward layers.{i}; alloc {8 * scale}MiB gradient layers.{i}.mlp.g on cuda:0; free act{i}; exit")
        lines.append("exit; enter optimizer")
        if step == 0:
            lines += [f"alloc {16 * scale}MiB optimizer-state layers.{i}.mlp.s on cuda:0" for i in range(layers)]
        lines.append("exit")
        lines += [f"free layers.{i}.mlp.g" for i in range(layers)]
    return replace(ledger("; ".join(lines)), info=GPU_INFO)


NS_PER_MS = 1_000_000


def timed() -> Ledger:
    """The same as a prediction with a clock: every event takes a millisecond, and three streams work in the last step."""
    run = training()
    strings = (*run.strings, "mm", "all_gather", "mesh_dp")
    mm, gather, group = (strings.index(word) for word in ("mm", "all_gather", "mesh_dp"))
    paths = [run.module_path(number) for number in range(len(run.modules))]
    first, second = paths.index("layers.0.mlp"), paths.index("layers.1.mlp")
    rows = (
        # stream, group, kind, module, operator, beginning and end in milliseconds of the step, busy, kernels
        (0, -1, WorkKind.FORWARD, first, mm, 1, 5, 4, 3),
        (0, -1, WorkKind.FORWARD, second, mm, 5, 9, 2, 2),
        (0, -1, WorkKind.BACKWARD, first, mm, 20, 30, 10, 1),
        (0, -1, WorkKind.OPTIMIZER, -1, mm, 31, 33, 2, 1),
        (4, -1, WorkKind.COPY, first, mm, 0, 2, 2, 1),
        (-1, group, WorkKind.COMMUNICATION, first, gather, 2, 22, 20, 1),
    )
    begin = int(run.step_starts[-1])
    table = [
        (stream, group, int(kind), module, op, *((begin + at) * NS_PER_MS for at in span), busy * NS_PER_MS, kernels)
        for stream, group, kind, module, op, *span, busy, kernels in rows
    ]
    return replace(
        run,
        events=replace(run.events, time_ns=NS_PER_MS * run.events.time_ns // 1_000),
        strings=strings,
        work=Work.from_rows([value for row in table for value in row]),
        info=replace(GPU_INFO, clock="timed"),
    ).check()


def hostile() -> Ledger:
    """Every string a stranger could have written is an attack on the page."""
    words = [HOSTILE, "</script><script>alert(2)</script>", '"><img src=x onerror=alert(3)>', "a\u202eb\x1b[31m"]
    builder = LedgerBuilder(RunInfo(versions={words[0]: words[2]}, problem=words[1], assumptions=(words[2], words[3])))
    root = builder.module("", words[2])
    module = builder.module(HOSTILE, words[1], root)
    scope = builder.enter(Phase.FORWARD, module)
    for word in words:
        block = builder.alloc(2**20, builder.device("cpu"), builder.string(word), scope)
        builder.role(block, Category.PARAMETER, module, word)
    builder.exit(scope)
    return builder.build()


def long(num_waves: int) -> Ledger:
    """Many blocks that come and go, one larger than the others in the middle: most of it cannot be drawn at once."""
    builder = LedgerBuilder(RunInfo(versions={"torch": "2.11"}))
    device, op = builder.device("cuda:0"), builder.string("aten.mm")
    module = builder.module("layer", "Linear")
    for i in range(num_waves):
        scope = builder.enter(Phase.FORWARD, module)
        block = builder.alloc(2**30 if i == num_waves // 2 else (i % 97 + 1) * 2**20, device, op, scope)
        builder.exit(scope)
        builder.free(block)
    return builder.build()
