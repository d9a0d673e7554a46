"""Every block that the steps of convolution nets take from CUDA's allocator, call by call, and what the rules say of them.

    python benchmarks/kernels/convolution_on_gpu.py --measure    # on a GPU, about two minutes: writes truth/convolutions.json
    python benchmarks/kernels/convolution_on_gpu.py              # anywhere: compares phantom/kernels/convolution with it
    python benchmarks/kernels/convolution_on_gpu.py --show unet  # the same, and every call of cases whose names start so

A case is a net of ``convolution_nets.py`` in one way to train it (types, layout, ``cudnn.benchmark``), or ``single``: convolutions
one by one over a grid of channels, sizes and kernels. The file has, per case:

    calls    every different call: operator, tensors, options. ``b110`` is a backward pass that is asked for the first two gradients
    parts    the allocator's log, in order, cut where a convolution begins and ends. A part begins with the number of its call, -1
             between calls and -2 at the end of a step; a size is an allocation, as asked, ``-k`` the end of the k-th one (from 1)
    steps    allocated and reserved peak of each step, as torch counts them
    kernels  per call, the CUDA kernels that one more step ran, by their number in ``names``
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

BENCHMARKS = pathlib.Path(__file__).parents[1]
TRUTH = BENCHMARKS / "truth" / "convolutions.json"
NUM_STEPS = 3
BETWEEN, END_OF_STEP = -1, -2
TYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
FORWARD, BACKWARD = torch.ops.aten.convolution.default, torch.ops.aten.convolution_backward.default
WAYS = ("f32", "f32 cl", "bf16", "bf16 cl", "f32 benchmark", "bf16 cl benchmark")
Part = list[int]


def case_names() -> list[str]:
    from benchmarks.kernels.convolution_nets import NETS

    names = [f"{net} {way}" for net in NETS for way in WAYS if not (net == "sound" and "cl" in way)]
    return [*names, "single"]


# -- what a call is ------------------------------------------------------------------------------------------------------------


def describe(op: Any, args: tuple[Any, ...]) -> str:
    """``f f32[8,64,56,56] f32[64,64,3,3] bias s1,1 p1,1 d1,1 g1``."""
    if op is BACKWARD:
        grad, x, weight, _, stride, padding, dilation, transposed, _, groups, mask = args
        words = ["b" + "".join(str(int(wanted)) for wanted in mask), _tensor(grad), _tensor(x), _tensor(weight)]
    else:
        x, weight, bias, stride, padding, dilation, transposed, _, groups = args
        words = ["f", _tensor(x), _tensor(weight), *(["bias"] if bias is not None else [])]
    words += [letter + ",".join(map(str, sizes)) for letter, sizes in (("s", stride), ("p", padding), ("d", dilation))]
    return " ".join([*words, f"g{groups}", *(["transposed"] if transposed else [])])


def _tensor(x: torch.Tensor) -> str:
    """Strides are written where they are neither those of a plain tensor nor those of one with channels last."""
    text = f"{TYPES[x.dtype]}[{','.join(map(str, x.shape))}]"
    if x.is_contiguous():
        return text
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if layout is not None and x.is_contiguous(memory_format=layout):
        return text + "cl"
    return text + "/" + ",".join(map(str, x.stride()))


# -- on a GPU ------------------------------------------------------------------------------------------------------------------


class Log(TorchDispatchMode):
    """The allocator's history, cut at every convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, int] = {}
        self.parts: list[Part] = []
        self._open: dict[int, int] = {}
        self._count = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is not FORWARD and op is not BACKWARD:
            return op(*args, **(kwargs or {}))
        self.cut(BETWEEN)
        number = self.calls.setdefault(describe(op, args), len(self.calls))
        result = op(*args, **(kwargs or {}))
        self.cut(number)
        return result

    def cut(self, number: int) -> None:
        """What happened since the cut before belongs to ``number``."""
        part = [number]
        for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
            if entry["action"] == "alloc":
                self._count += 1
                self._open[entry["addr"]] = self._count
                part.append(entry["size"])
            elif entry["action"] == "free_requested" and (block := self._open.pop(entry["addr"], None)) is not None:
                part.append(-block)
        if len(part) > 1 or number != BETWEEN:
            self.parts.append(part)
        self.restart()

    def restart(self) -> None:
        torch.cuda.memory._record_memory_history(None)
        torch.cuda.memory._record_memory_history("all", context=None, max_entries=1_000_000)


def measure_net(name: str) -> dict[str, Any]:
    from benchmarks.kernels.convolution_nets import NETS

    net_name, *way = name.split()
    torch.backends.cudnn.benchmark = "benchmark" in way
    log, steps = Log(), []
    log.restart()
    net = NETS[net_name]()
    inputs = net.inputs
    if "cl" in way:
        layout = torch.channels_last_3d if inputs[0].dim() == 5 else torch.channels_last
        net.model, inputs = net.model.to(memory_format=layout), tuple(x.to(memory_format=layout) for x in inputs)
    optimizer = torch.optim.SGD(net.model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled="bf16" in way):
            loss = net.loss(net.model(*inputs))
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    with log:
        for _ in range(NUM_STEPS):
            torch.cuda.reset_peak_memory_stats()
            step()
            torch.cuda.synchronize()
            log.cut(END_OF_STEP)
            steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
    torch.cuda.memory._record_memory_history(None)
    return {"calls": list(log.calls), "parts": log.parts, "steps": steps} | kernels_of(step, list(log.calls))


def kernels_of(step: Any, calls: list[str]) -> dict[str, Any]:
    """Which kernels the convolutions of one more step run; nothing where the profiler is not allowed to see them."""
    try:
        named = _Named(calls)
        with (
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as seen,
            named,
        ):
            step()
            torch.cuda.synchronize()
        names: dict[str, int] = {}
        found: dict[int, list[int]] = {}
        for event in seen.events():
            if event.name.startswith("call "):
                inside = [names.setdefault(kernel.name, len(names)) for kernel in _kernels_below(event)]
                found.setdefault(int(event.name.removeprefix("call ")), inside)
        return {"names": list(names), "kernels": found}
    except Exception as error:
        return {"names": [], "kernels": {}, "no_kernels": f"{type(error).__name__}: {error}"[:200]}


def _kernels_below(event: Any) -> Iterator[Any]:
    yield from event.kernels
    for child in event.cpu_children:
        yield from _kernels_below(child)


class _Named(TorchDispatchMode):
    """Writes the number of its call around every convolution, for the profiler."""

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self._numbers = {call: number for number, call in enumerate(calls)}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is not FORWARD and op is not BACKWARD:
            return op(*args, **(kwargs or {}))
        with torch.profiler.record_function(f"call {self._numbers.get(describe(op, args), -1)}"):
            return op(*args, **(kwargs or {}))


GRID_CHANNELS = ((3, 64), (16, 16), (64, 64), (64, 256), (256, 64), (96, 160), (256, 256), (512, 512), (100, 100), (1024, 256))
GRID_SIZES = ((2, 112), (8, 56), (8, 28), (32, 14), (8, 7), (4, 57))
GRID_KERNELS = ((1, 1), (3, 1), (3, 2), (5, 1))


def measure_single() -> dict[str, Any]:
    """A grid of plain convolutions; each runs twice, and only the second counts: the first may fill caches."""
    log = Log()
    log.restart()
    ends = time.monotonic() + 100
    cases = [(sizes, channels, kernel) for sizes in GRID_SIZES for channels in GRID_CHANNELS for kernel in GRID_KERNELS]
    for number, ((batch, size), (inputs, outputs), (kernel, stride)) in enumerate(cases):
        if time.monotonic() > ends:
            print(f"single: out of time after {number} of {len(cases)} cases", flush=True)
            break
        for dtype in (torch.float32, torch.bfloat16):
            for layout in (torch.contiguous_format, torch.channels_last):
                x = torch.randn(batch, inputs, size, size, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
                shape = (outputs, inputs, kernel, kernel)
                weight = torch.randn(shape, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
                for counts in (False, True):
                    log.restart()
                    with log if counts else torch.enable_grad():
                        result = torch.nn.functional.conv2d(x, weight, None, stride, kernel // 2)
                        torch.autograd.grad(result, (x, weight), torch.ones_like(result))
                    del result
    return {"calls": list(log.calls), "parts": log.parts, "steps": [], "names": [], "kernels": {}}


def measure_all(names: list[str], jobs: int, limit_s: float) -> None:
    """Each case in a fresh process, several at a time; those that choose by measuring time have the GPU to themselves."""
    end = time.monotonic() + limit_s
    found: dict[str, Any] = json.loads(TRUTH.read_text())["cases"] if TRUTH.exists() else {}

    def in_fresh_process(name: str) -> tuple[str, dict[str, Any]]:
        command = [sys.executable, __file__, "--measure-here", "--only", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return name, {"error": "out of time"}
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        print(f"{name}: {'done' if lines else 'failed'}, {end - time.monotonic():.0f} s left", flush=True)
        return name, json.loads(lines[0].removeprefix("RESULT ")) if lines else {"error": done.stderr[-500:]}

    timed = [name for name in names if "benchmark" in name]
    with ThreadPoolExecutor(jobs) as pool:
        found |= dict(pool.map(in_fresh_process, [name for name in names if name not in timed]))
    found |= dict(map(in_fresh_process, timed))
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}" for name, case in found.items())
    TRUTH.write_text(f'{{"about": {json.dumps(about)},\n"cases": {{\n{lines}\n}}}}\n')
    failed = [f"{name}: {found[name]['error']}" for name in names if "error" in found[name]]
    print(f"{len(names) - len(failed)} of {len(names)} cases measured", *failed, sep="\n")


# -- anywhere ------------------------------------------------------------------------------------------------------------------


def blocks_of(parts: list[Part]) -> dict[int, list[int]]:
    """Per call, of its last time: the blocks that it took and gave back before it ended, in the order of their ends."""
    sizes: list[int] = []
    found = {}
    for number, *events in parts:
        num_before = len(sizes)
        sizes += [event for event in events if event > 0]
        if number >= 0:
            found[number] = [sizes[-event - 1] for event in events if event < 0 and -event > num_before]
    return found


def predicted_blocks(call: str) -> list[int]:
    """What the rules of phantom/kernels/convolution/rules.py say that a call takes."""
    from memfit.phantom.kernels.convolution import rules
    from memfit.phantom.target import Target

    target = Target.parse("H200", "2.11+cu130")
    args, result = arguments_of(call)
    if call.startswith("f"):
        return [size for size in rules.forward(target, args, result) if size]
    by_output = rules.backward(target, args, result)
    return [size for blocks, wanted in zip(by_output, args[-1], strict=True) if wanted for size in blocks if size]


def arguments_of(call: str) -> tuple[tuple[Any, ...], Any]:
    """Arguments and result of a call, without data."""
    words = call.split()
    transposed, groups = "transposed" in words, int(next(word[1:] for word in words if word[0] == "g"))
    stride, padding, dilation = ([int(n) for n in next(w[1:] for w in words[2:] if w[0] == letter).split(",")] for letter in "spd")
    tensors = [_parse(word) for word in words[1:] if "[" in word]
    if words[0] == "f":
        x, weight = tensors
        bias = x.new_empty(weight.shape[1] * groups if transposed else weight.shape[0]) if "bias" in words else None
        args = (x, weight, bias, stride, padding, dilation, transposed, [0] * len(stride), groups)
        return args, FORWARD(*args)
    grad, x, weight = tensors
    mask = [digit == "1" for digit in words[0][1:]]
    args = (grad, x, weight, None, stride, padding, dilation, transposed, [0] * len(stride), groups, mask)
    result = (x if mask[0] else None, weight if mask[1] else None, grad.new_empty(grad.shape[1]) if mask[2] else None)
    return args, result


def trials_of(case: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Every call that made cuDNN measure its kernels, with what that took, and what phantom/kernels/convolution/trials.py says."""
    from memfit.phantom.kernels.convolution import trials

    sizes: list[int] = []
    tried = set()
    for number, *events in case["parts"]:
        num_before = len(sizes)
        sizes += [event for event in events if event > 0]
        if number < 0:
            continue
        call = case["calls"][number]
        args, result = arguments_of(call)
        is_forward = call.startswith("f")
        attempts = (trials.try_forward if is_forward else trials.try_backward)(args, result)
        outputs = (result,) if is_forward else result
        for trial, events_of_output in zip(
            [trial for trial in attempts if trial is not None],
            _by_output(events, [_num_bytes(output) for output in outputs[:2] if output is not None]),
            strict=True,
        ):
            if trial.key not in tried:
                tried.add(trial.key)
                freed = [sizes[-event - 1] for event in events_of_output if event < 0 and -event > num_before]
                yield call, freed[0] if freed else 0, max(trial.sizes)


def _by_output(events: list[int], outputs: list[int]) -> list[list[int]]:
    """The events of a call, cut where its outputs are made: their sizes in bytes tell where."""
    found: list[list[int]] = []
    for event in events:
        if len(found) < len(outputs) and event == outputs[len(found)]:
            found.append([])
        elif found:
            found[-1].append(event)
    return found


def _num_bytes(x: torch.Tensor) -> int:
    return x.numel() * x.element_size()


def _parse(word: str) -> torch.Tensor:
    kind, _, rest = word.partition("[")
    shape, _, layout = rest.partition("]")
    sizes = [int(size) for size in shape.split(",")]
    dtype = next(dtype for dtype, name in TYPES.items() if name == kind)
    if layout.startswith("/"):
        return torch.empty_strided(sizes, [int(n) for n in layout[1:].split(",")], dtype=dtype, device="meta")
    made = torch.empty(sizes, dtype=dtype, device="meta")
    return made.to(memory_format=torch.channels_last if len(sizes) == 4 else torch.channels_last_3d) if layout == "cl" else made


def compare(names: list[str], shows_all: bool) -> None:
    """A line per case: for how many calls the largest block is as the rules say, and by how much it is not."""
    truth = json.loads(TRUTH.read_text())["cases"]
    print("| case | calls | largest block exact | within 1 MiB | too large, MiB at most | too small, MiB at most |")
    print("|---|---|---|---|---|---|")
    for name in (name for name in names if name in truth and "error" not in truth[name]):
        blocks, offs = blocks_of(truth[name]["parts"]), []
        for number, call in enumerate(truth[name]["calls"]):
            measured, ours = blocks.get(number, []), predicted_blocks(call)
            offs.append(max(ours, default=0) - max(measured, default=0))
            if shows_all and abs(offs[-1]) >= 512:
                print(f"{call}: measured {measured}, predicted {ours}")
        exact, close = sum(abs(off) < 512 for off in offs), sum(abs(off) < 2**20 for off in offs)
        print(f"| {name} | {len(offs)} | {exact} | {close} | {max(offs) / 2**20:.1f} | {min(offs) / 2**20:.1f} |")
    print("\n| trials of cudnn.benchmark | trials | exact | within 1 MiB | too large, MiB at most | too small, MiB at most |")
    print("|---|---|---|---|---|---|")
    for name in (name for name in names if "benchmark" in name and name in truth and "error" not in truth[name]):
        offs = []
        for call, measured, ours in trials_of(truth[name]):
            offs.append(ours - measured)
            if shows_all and abs(offs[-1]) >= 512:
                print(f"{call}: measured {measured}, predicted {ours}, {offs[-1] / 2**20:+.1f} MiB")
        exact, close = sum(abs(off) < 512 for off in offs), sum(abs(off) < 2**20 for off in offs)
        print(f"| {name} | {len(offs)} | {exact} | {close} | {max(offs) / 2**20:.1f} | {min(offs) / 2**20:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help="beginnings of their names; all if none")
    parser.add_argument("--measure", action="store_true", help="on a GPU")
    parser.add_argument("--measure-here", action="store_true", help="in this process, as one line of JSON")
    parser.add_argument("--only", help="the one case to measure here")
    parser.add_argument("--show", action="store_true", help="every call of which another size is predicted than was measured")
    parser.add_argument("--jobs", type=int, default=4, help="processes at a time")
    parser.add_argument("--limit-s", type=float, default=230, help="stop measuring after so many seconds")
    args = parser.parse_args()
    names = [name for name in case_names() if not args.cases or name.startswith(tuple(args.cases))]
    if args.measure_here:
        try:
            found = measure_single() if args.only == "single" else measure_net(args.only)
        except Exception:
            found = {"error": traceback.format_exc()[-500:]}
        print("RESULT " + json.dumps(found, separators=(",", ":")), flush=True)
    elif args.measure:
        measure_all(names, args.jobs, args.limit_s)
    else:
        compare(names, args.show)


if __name__ == "__main__":
    main()
