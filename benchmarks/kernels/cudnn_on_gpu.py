"""What cuDNN takes for thousands of different convolutions and recurrent layers, one by one.

    python benchmarks/kernels/cudnn_on_gpu.py --measure --seconds 90 --jobs 14  # on a GPU: writes truth/cudnn_*.json.gz
    python benchmarks/kernels/cudnn_on_gpu.py                                   # anywhere: compares them with predictions

Where cuDNN is installed, convolutions that are no products are asked of it, as in a prediction; elsewhere rules estimate them.

Shapes are drawn at random, as nets have them: one to three dimensions, channels that nets use, kernels of 1 to 16, both layouts,
three types, groups, dilation, transposed ones. The workspace of a call is the peak above what is there before and what it returns,
so it is known to a multiple of 512 bytes. Each call runs twice, and the second counts: the first may fill caches.

    convolutions  [type, layout, batch, inputs, outputs, sizes, kernel, stride, padding, dilation, groups, transposed,
                   forward, gradient of the input, gradient of the weight]
    recurrent     [mode, type, steps, batch, inputs, hidden, layers, both ways, dropout, projection, forward, backward]
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import pathlib
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

TRUTH = pathlib.Path(__file__).parents[1] / "truth"
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}
CHANNELS = (
    1,
    2,
    3,
    4,
    8,
    12,
    16,
    20,
    24,
    32,
    40,
    48,
    56,
    64,
    72,
    80,
    96,
    112,
    120,
    128,
    144,
    160,
    184,
    192,
    224,
    240,
    256,
    288,
    320,
    384,
)
MANY_CHANNELS = (448, 480, 512, 576, 640, 672, 768, 960, 1024, 1152, 1280, 1536, 1920, 2048)
SIZES = (
    4,
    7,
    8,
    10,
    13,
    14,
    16,
    20,
    25,
    28,
    32,
    38,
    40,
    50,
    56,
    64,
    75,
    80,
    96,
    100,
    112,
    128,
    150,
    160,
    192,
    224,
    256,
    300,
    320,
    384,
    512,
)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
MOST_ELEMENTS = 2**27


def measured(call: Any) -> int:
    """Bytes that a call takes beside what it returns."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    peak = torch.cuda.max_memory_allocated()
    kept = torch.cuda.memory_allocated() - before
    del result
    return peak - before - kept


def some_convolution(draw: random.Random) -> tuple[Any, ...]:
    dims = draw.choices((1, 2, 3), (12, 72, 16))[0]
    transposed = draw.random() < 0.08
    kind = draw.choices(
        ("one", "three", "five", "seven", "even", "patches", "grouped", "dilated", "oblong"), (30, 40, 4, 5, 5, 4, 5, 3, 4)
    )[0]
    inputs = draw.choice(CHANNELS + MANY_CHANNELS * 2)
    outputs = draw.choice([each for each in CHANNELS + MANY_CHANNELS if inputs / 8 <= each <= max(8 * inputs, 64)])
    if draw.random() < 0.35:
        outputs = inputs
    if draw.random() < 0.06 and kind not in ("grouped",):
        inputs = draw.choice((1, 3, 3, 3, 4))
    kernel, stride, groups, dilation = [3] * dims, draw.choice((1, 1, 1, 2)), 1, 1
    padding = [1] * dims
    if kind == "one":
        kernel, padding = [1] * dims, [0] * dims
    elif kind in ("five", "seven"):
        size = 5 if kind == "five" else 7
        kernel, padding = [size] * dims, [size // 2] * dims
    elif kind == "even":
        kernel, stride, padding = ([2] * dims, 2, [0] * dims) if draw.random() < 0.5 else ([4] * dims, 2, [1] * dims)
    elif kind == "patches":
        size = draw.choice((4, 8, 14, 16))
        kernel, stride, padding, transposed = [size] * dims, size, [0] * dims, False
        inputs = draw.choice((1, 3, 3, 3, 4))
    elif kind == "grouped":
        groups = draw.choice([each for each in (2, 4, 8, 16, 32, 64) if inputs % each == 0] or [1])
        outputs = inputs
    elif kind == "dilated":
        dilation = draw.choice((2, 4))
        padding = [dilation] * dims
    elif kind == "oblong":
        kernel = [draw.choice((1, 3)) if each else 3 for each in range(dims)]
        padding = [each // 2 for each in kernel]
    if dims == 1:
        kernel = [draw.choice((1, 2, 3, 3, 3, 5, 8, 10))]
        padding = [kernel[0] // 2]
        stride = draw.choice((1, 1, 2, 5))
    for _ in range(100):
        batch = draw.choice(BATCHES)
        size = draw.choice(SIZES) * (draw.choice((1, 4, 16, 40)) if dims == 1 else 1)
        sizes = [size] * dims
        if dims == 3:
            sizes[0] = draw.choice((1, 4, 8, 16, 32))
        spatial = math.prod(sizes)
        if (
            batch * spatial * max(inputs, outputs) <= MOST_ELEMENTS
            and min(sizes) + 2 * padding[0] >= dilation * (max(kernel) - 1) + 1
        ):
            break
    else:
        return some_convolution(draw)
    dtype = draw.choices(("f32", "bf16", "f16"), (40, 45, 15))[0]
    layout = "cl" if dims > 1 and draw.random() < 0.45 else ""
    return dtype, layout, batch, inputs, outputs, sizes, kernel, [stride] * dims, padding, [dilation] * dims, groups, transposed


def measure_convolution(case: tuple[Any, ...]) -> list[int]:
    dtype, layout, batch, inputs, outputs, sizes, kernel, stride, padding, dilation, groups, transposed = case
    x = torch.zeros(batch, inputs, *sizes, device="cuda", dtype=TYPES[dtype])
    shape = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    weight = torch.zeros(*shape, *kernel, device="cuda", dtype=TYPES[dtype])
    if layout:
        x, weight = (each.to(memory_format=LAYOUTS[each.dim()]) for each in (x, weight))
    nothing = [0] * len(sizes)
    options = (stride, padding, dilation, transposed, nothing, groups)
    forward = torch.ops.aten.convolution
    grad = forward(x, weight, None, *options)
    backward = partial(torch.ops.aten.convolution_backward, grad, x, weight, None, *options)
    return [
        measured(partial(forward, x, weight, None, *options)),
        measured(partial(backward, [True, False, False])),
        measured(partial(backward, [False, True, False])),
    ]


def some_recurrent(draw: random.Random) -> tuple[Any, ...]:
    mode = draw.choices(("lstm", "gru", "tanh", "relu"), (50, 30, 12, 8))[0]
    hidden = draw.choice((8, 16, 32, 50, 64, 96, 100, 128, 200, 256, 300, 320, 384, 512, 650, 768, 1000, 1024, 1500, 2048))
    inputs = draw.choice((1, 8, 28, 40, 64, 80, 128, 200, 256, 300, 512, 768, 1024, hidden, hidden))
    steps, batch = (
        draw.choice((1, 5, 10, 20, 28, 35, 50, 64, 100, 128, 200, 256, 512, 1000)),
        draw.choice((1, 4, 8, 16, 20, 32, 64, 100, 128, 256, 512)),
    )
    if steps * batch * max(hidden, inputs) > 2**26:
        return some_recurrent(draw)
    projected = (
        draw.choice([each for each in (16, 64, 256) if each < hidden] or [0]) if mode == "lstm" and draw.random() < 0.1 else 0
    )
    layers = draw.choices((1, 2, 3, 4), (50, 30, 10, 10))[0]
    dtype = draw.choices(("f32", "bf16", "f16"), (60, 25, 15))[0]
    return mode, dtype, steps, batch, inputs, hidden, layers, draw.random() < 0.3, layers > 1 and draw.random() < 0.4, projected


def measure_recurrent(case: tuple[Any, ...]) -> list[int]:
    mode, dtype, steps, batch, inputs, hidden, layers, both, drops, projected = case
    options: dict[str, Any] = {"bidirectional": both, "dropout": 0.1 if drops else 0.0, "num_layers": layers}
    if projected:
        options["proj_size"] = projected
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(mode, torch.nn.RNN)
    if kind is torch.nn.RNN:
        options["nonlinearity"] = mode
    net = kind(inputs, hidden, **options).cuda().to(TYPES[dtype])
    x = torch.zeros(steps, batch, inputs, device="cuda", dtype=TYPES[dtype])
    forward = measured(lambda: net(x))
    out, _ = net(x)
    grad = torch.zeros_like(out)

    def backward() -> Any:
        return torch.autograd.grad(out, list(net.parameters()), grad, retain_graph=True)

    return [forward, measured(backward)]


KINDS = {"convolutions": (some_convolution, measure_convolution), "recurrent": (some_recurrent, measure_recurrent)}


def measure_here(kind: str, seed: int, seconds: float) -> Iterator[list[Any]]:
    draw, end = random.Random(seed), time.monotonic() + seconds
    some, measure = KINDS[kind]
    while time.monotonic() < end:
        case = some(draw)
        try:
            yield [*case, *measure(case)]
        except (torch.OutOfMemoryError, RuntimeError) as error:
            print(f"{case}: {str(error)[:100]}", file=sys.stderr)
        torch.cuda.empty_cache()


def measure_all(kind: str, jobs: int, seconds: float, first_seed: int) -> None:
    command = [sys.executable, __file__, "--here", kind, "--seconds", str(seconds), "--seed"]
    running = [subprocess.Popen([*command, str(first_seed + job)], stdout=subprocess.PIPE, text=True) for job in range(jobs)]
    rows = [json.loads(line) for process in running for line in process.communicate()[0].splitlines()]
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    with gzip.GzipFile(TRUTH / f"cudnn_{kind}.json.gz", "wb", mtime=0) as file:
        file.write(f'{{"about":{json.dumps(about)},\n"rows":[\n{lines}\n]}}\n'.encode())
    print(f"{len(rows)} {kind}")


# -- anywhere ------------------------------------------------------------------------------------------------------------------


def rows_of(kind: str) -> list[list[Any]]:
    with gzip.open(TRUTH / f"cudnn_{kind}.json.gz", "rt") as file:
        rows: list[list[Any]] = json.load(file)["rows"]
    return rows


def recurrent_errors() -> Iterator[tuple[str, float]]:
    """Of every layer that was measured, by kind and type: how far off the workspace of its forward pass is, as a share."""
    from memfit.phantom.kernels import recurrent

    modes = {"lstm": recurrent.LSTM, "gru": recurrent.GRU, "tanh": recurrent.RNN_TANH, "relu": recurrent.RNN_RELU}
    gates = {"lstm": 4, "gru": 3}
    for mode, dtype, steps, batch, inputs, hidden, layers, both_ways, drops, projected, measured_bytes, _ in rows_of("recurrent"):
        x = torch.empty(steps, batch, inputs, dtype=TYPES[dtype], device="meta")
        settings = (hidden, projected, layers, False, 0.1 if drops else 0.0, True, both_ways, [], None)
        out, ways = projected or hidden, 1 + both_ways
        of_inputs = [inputs] + [ways * out] * (layers - 1)
        weights = sum(ways * (gates.get(mode, 1) * hidden * (each + out) + hidden * projected) for each in of_inputs)
        predicted = recurrent.Sizes.of(x, modes[mode], settings).workspace_bytes(weights * x.element_size(), is_forward=True)
        yield f"{mode} {dtype}", predicted / measured_bytes - 1


def convolution_errors() -> Iterator[tuple[str, int, int]]:
    """Of every convolution that was measured, by pass, type and layout: measured and predicted bytes."""
    from memfit.phantom.kernels.convolution import rules
    from memfit.phantom.target import Target

    target = Target.parse("H200", "2.11+cu130")
    for row in rows_of("convolutions"):
        dtype, layout, batch, inputs, outputs, sizes, kernel, stride, padding, dilation, groups, transposed, *measured_bytes = row
        x = torch.empty(batch, inputs, *sizes, dtype=TYPES[dtype], device="meta")
        shape = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
        weight = torch.empty(*shape, *kernel, dtype=TYPES[dtype], device="meta")
        options = (stride, padding, dilation, transposed, [0] * len(sizes), groups)
        out = torch.ops.aten.convolution(x, weight, None, *options)
        if layout:
            x, weight, out = (each.to(memory_format=LAYOUTS[each.dim()]) for each in (x, weight, out))
        of_input, of_weight, _ = rules.backward(target, (out, x, weight, None, *options, [True, True, False]), (x, weight, None))
        predicted = (rules.forward(target, (x, weight, None, *options), out), of_input, of_weight)
        for name, taken, blocks in zip(("forward", "of the input", "of the weight"), measured_bytes, predicted, strict=True):
            yield f"{name}, {dtype}{' channels last' if layout else ''}", taken, sum(blocks)


def compare() -> None:
    found: dict[str, list[float]] = {}
    for name, error in recurrent_errors():
        found.setdefault(name, []).append(abs(error))
    print("| recurrent layers | number | off in the median | nine of ten within | at worst |\n|---|---|---|---|---|")
    for name, errors in sorted(found.items()):
        errors.sort()
        middle, most = errors[len(errors) // 2], errors[len(errors) * 9 // 10]
        print(f"| {name} | {len(errors)} | {middle:.2%} | {most:.1%} | {errors[-1]:.1%} |")
    near: dict[str, list[bool]] = {}
    for name, taken, predicted in convolution_errors():
        for group in (name, "all"):
            near.setdefault(group, []).append(is_near(taken, predicted))
    print("\n| convolutions | number | within 1 MiB or 2 % |\n|---|---|---|")
    for name, each in sorted(near.items()):
        print(f"| {name} | {len(each)} | {sum(each) / len(each):.0%} |")


def is_near(taken: int, predicted: int) -> bool:
    """The allocator gives up to a MiB more than it is asked for, so more cannot be told."""
    return abs(taken - predicted) <= max(1.05 * 2**20, 0.02 * taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--here", choices=list(KINDS), help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.here:
        for row in measure_here(args.here, args.seed, args.seconds):
            print(json.dumps(row, separators=(",", ":")), flush=True)
    elif args.measure:
        measure_all("recurrent", args.jobs, args.seconds / 4, args.seed)
        measure_all("convolutions", args.jobs, args.seconds, args.seed)
    else:
        compare()


if __name__ == "__main__":
    main()
