"""cuDNN itself, asked what it would take on a GPU that is not there.

::

    a convolution ──> operation graph ──┐
                                        ├──> heuristics ──> the kernel that torch would run ──> its workspace
    a GPU by name ──> its properties ───┘

Since 9.8 the library answers for a device that is only described. It is there wherever PyTorch's CUDA wheel is installed, with or
without a GPU, and costs some milliseconds for each different convolution. Without a driver it reckons with too few blocks that run
at a time, and so with other partial sums: ``segments.py`` puts that right. Of 27,456 workspaces measured on an H200, 95 % are
within a MiB or 2 %, 77 % by rules alone (``benchmarks/kernels/cudnn_on_gpu.py``). Products (one-by-one kernels) are not asked for:
cuBLAS answers for real devices alone.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from memfit.convolution import ConvGeometry, ConvPass, strides_of
from memfit.hardware import Gpu
from memfit.phantom.kernels.convolution.segments import (
    BLOCKS_WITHOUT_DEVICE,
    Tiling,
    measured_sms,
    num_resident_blocks,
    partial_sums,
)
from memfit.phantom.kernels.convolution.trials import laid_out_anew
from memfit.phantom.target import Target

FIRST_VERSION = 90800
LIBRARY = "libcudnn.so.9"

# cudnn_graph.h: kinds of descriptors, names and types of their attributes.
_CONVOLUTION, _ENGINE, _ENGINE_CONFIG, _HEURISTICS, _KNOB_CHOICE, _GRAPH, _TENSOR, _DEVICE = 1, 2, 3, 4, 7, 15, 17, 38
_IS_TYPE, _IS_INT64, _IS_FLOAT, _IS_MODE, _IS_HEURISTIC, _IS_KNOB, _IS_DESCRIPTOR, _IS_CHAR = 1, 3, 4, 7, 8, 9, 15, 24
_OPERATIONS = {
    ConvPass.FORWARD: (10, 700, 701, 702, 703, 704, 705),
    ConvPass.IMAGES: (12, 706, 707, 708, 709, 710, 711),
    ConvPass.WEIGHTS: (11, 712, 713, 714, 715, 716, 717),
}
"""Kind of descriptor, and its attributes for scales, convolution, weight, input, output."""
_DATA_TYPES = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}
_SUMMED_IN = {"f64": 1}
_CROSS_CORRELATION, _INSTANT = 1, 0
_DEVICE_AS_JSON, _GRAPH_OPERATIONS = 2702, 801
_ENGINE_OF_CONFIG, _KNOBS_OF_CONFIG, _WORKSPACE_OF_CONFIG, _NUMBER_OF_ENGINE = 300, 302, 303, 1301
_TYPE_OF_KNOB, _VALUE_OF_KNOB, _MOST_KNOBS = 600, 601, 44
_HEURISTIC_MODE, _HEURISTIC_GRAPH, _HEURISTIC_RESULTS, _HEURISTIC_DEVICE = 200, 201, 202, 204
_ALIGNMENT, _BYTES = 900, 16


BEATEN_ENGINES = (38, 41, 67)
"""Kernels for results that the heuristics name first in float32 with channels first, and that are seldom the fastest, or not with
segments. Of 36 such results without strides, with kernels larger than one, in three networks over images that were measured with
``cudnn.benchmark``, 31 have everything laid out anew; the heuristics' workspace is that of 19 (benchmarks/truth/convolutions.json).
With strides it is 7 of 12 either way."""


def workspace_bytes(target: Target, conv_pass: ConvPass, geometry: ConvGeometry) -> int | None:
    """What the kernel takes that torch would run, or ``None`` where no library is installed that can be asked."""
    cudnn = torch.backends.cudnn
    if geometry.dtype not in _DATA_TYPES or cudnn.deterministic or not cudnn.allow_tf32 or not target.gpu.arch.startswith("sm_"):
        return None  # torch leaves kernels out then
    return _ask(target.gpu, target.capability, conv_pass, geometry.in_two_dimensions(), is_measured=cudnn.benchmark)


def reservations(target: Target) -> list[str] | None:
    """What may be different in the run that is predicted, in words; ``None`` where no library can be asked."""
    library = _installed()
    if library is None or not target.gpu.arch.startswith("sm_"):
        return None
    installed, expected = _readable(library.version), ".".join(map(str, target.cudnn))
    found = [] if installed == expected else [f"torch {target.torch[0]}.{target.torch[1]} comes with cuDNN {expected}"]
    if target.gpu.name not in _CLOCKED:
        found.append(f"the clock rates of an H200 were taken for those of the {target.gpu.name}")
    if target.capability == (9, 0) and target.gpu.num_sms != measured_sms():
        found.append(f"its clusters of thread blocks were taken in proportion to those of an H200 with {measured_sms()} SMs")
    return [f"asked of cuDNN {installed} without a GPU", *found]


def _readable(version: int) -> str:
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


@cache
def _ask(gpu: Gpu, capability: tuple[int, int], conv_pass: ConvPass, geometry: ConvGeometry, *, is_measured: bool) -> int | None:
    library = _installed()
    if library is None:
        return None
    try:
        answer = library.ask(_properties(gpu, capability), conv_pass, geometry)
        if is_measured and _is_beaten(conv_pass, geometry, answer.engine):
            return laid_out_anew(geometry)
        return _with_segments(gpu, conv_pass, geometry, answer)
    except _NoKernelError:
        # Torch goes on to kernels of a fixed list. Measured: with channels first, those for results and for gradients of inputs
        # take nothing, or some KiB (68 of 68 convolutions in benchmarks/truth/cudnn_convolutions.json.gz).
        return None if geometry.channels_last or conv_pass is ConvPass.WEIGHTS else 0
    except _RefusedError:
        return None


def _is_beaten(conv_pass: ConvPass, geometry: ConvGeometry, engine: int) -> bool:
    """Whether ``cudnn.benchmark`` finds another kernel than the heuristics' to be the fastest: one for tensor cores that has
    everything laid out with channels last, and sums without segments."""
    if conv_pass is not ConvPass.FORWARD or geometry.channels_last or geometry.dtype != "f32":
        return False
    return geometry.taps > 1 and max(geometry.stride) == 1 and engine in BEATEN_ENGINES


def _with_segments(gpu: Gpu, conv_pass: ConvPass, geometry: ConvGeometry, answer: Answer) -> int:
    """With the partial sums that there are on a real device, in place of those that cuDNN takes without one."""
    tiling = Tiling.of_engine(conv_pass, answer.engine, answer.knobs)
    if tiling is None:
        return answer.workspace_bytes
    without_device = max(BLOCKS_WITHOUT_DEVICE // tiling.cluster_size, 1) * tiling.cluster_size
    with_device = num_resident_blocks(tiling.cluster_size, gpu.num_sms)
    sums = (partial_sums(conv_pass, geometry, tiling, blocks) for blocks in (with_device, without_device))
    return max(answer.workspace_bytes + next(sums) - next(sums), 0)


@cache
def _installed() -> _Library | None:
    """The library that PyTorch's wheels bring, if it is of a version that can be asked, and cuBLAS is there: without it the first
    question ends the process."""
    with suppress(ImportError, OSError, AttributeError, ValueError):
        package = importlib.util.find_spec("nvidia.cudnn")
        for folder in (package and package.submodule_search_locations) or ():
            path = Path(folder, "lib", LIBRARY)
            if path.exists() and _has_cublas(Path(folder)):
                library = ctypes.CDLL(str(path))
                return _Library(library) if library.cudnnGetVersion() >= FIRST_VERSION else None
    return None


def _has_cublas(folder: Path) -> bool:
    """Whether cuBLAS is installed beside the package of cuDNN, or where the system looks."""
    return any(folder.parent.glob("*/lib/libcublasLt.so.*")) or ctypes.util.find_library("cublasLt") is not None


@cache
def _properties(gpu: Gpu, capability: tuple[int, int]) -> bytes:
    """What cuDNN asks a driver about a device. What it chooses depends on few of them: an H200's are real, and others differ from
    it in what ``hardware`` knows."""
    major, minor = capability
    properties = {
        "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": gpu.num_sms,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": _SHARED_MEMORY.get(capability, 101376),
        "reservedSharedMemoryPerBlock": 1024,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32 if minor == 0 else 24,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": 2048 if minor == 0 else 1536,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": gpu.usable_bytes,
        "smClockRateKHz": 1_980_000,
        "memClockRateKHz": 3_201_000,
        "l2CacheSize": gpu.l2_cache_bytes,
        "cudaDeviceId": 0,
        "deviceVer": 100 * major + 10 * minor,
        "driverVer": 13000,
        "deviceName": f"NVIDIA {gpu.name}",
    }
    return json.dumps(properties).encode()


_CLOCKED = ("H200",)
"""GPUs whose clock rates are known, as cuDNN reads them from a driver."""

_SHARED_MEMORY = {(7, 0): 98304, (7, 5): 65536, (8, 0): 166912, (9, 0): 232448, (10, 0): 232448, (10, 3): 232448}
"""Bytes that a block may ask for, by compute capability (CUDA C++ Programming Guide, technical specifications)."""


class _RefusedError(Exception):
    """cuDNN has no kernel for this, or cannot tell without a device."""


class _NoKernelError(_RefusedError):
    """cuDNN's heuristics know no kernel for this."""


@dataclass(frozen=True)
class Answer:
    """The kernel that cuDNN would run first."""

    workspace_bytes: int
    engine: int
    knobs: dict[int, int]


class _Library:
    """The few calls of cuDNN's graph interface that a question takes. Everything that is made is destroyed when it was answered."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @property
    def version(self) -> int:
        found: int = self._library.cudnnGetVersion()
        return found

    def ask(self, properties: bytes, conv_pass: ConvPass, geometry: ConvGeometry) -> Answer:
        with self._descriptors() as make:
            device = make(_DEVICE, (_DEVICE_AS_JSON, _IS_CHAR, properties))
            operation = self._operation(make, conv_pass, geometry)
            graph = make(_GRAPH, (_GRAPH_OPERATIONS, _IS_DESCRIPTOR, [operation]))
            heuristics = make(
                _HEURISTICS,
                (_HEURISTIC_GRAPH, _IS_DESCRIPTOR, [graph]),
                (_HEURISTIC_MODE, _IS_HEURISTIC, [_INSTANT]),
                (_HEURISTIC_DEVICE, _IS_DESCRIPTOR, [device]),
            )
            config, found = make(_ENGINE_CONFIG, is_result=True), ctypes.c_int64()
            results = (ctypes.c_void_p * 1)(config)
            self._get(heuristics, _HEURISTIC_RESULTS, _IS_DESCRIPTOR, found, results)
            if not found.value:
                raise _NoKernelError
            size = ctypes.c_int64()
            self._get(config, _WORKSPACE_OF_CONFIG, _IS_INT64, found, ctypes.byref(size))
            engine, number = make(_ENGINE, is_result=True), ctypes.c_int64()
            self._get(config, _ENGINE_OF_CONFIG, _IS_DESCRIPTOR, found, (ctypes.c_void_p * 1)(engine))
            self._get(engine, _NUMBER_OF_ENGINE, _IS_INT64, found, ctypes.byref(number))
            return Answer(size.value, number.value, self._knobs(make, config))

    def _knobs(self, make: Any, config: Any) -> dict[int, int]:
        choices = [make(_KNOB_CHOICE, is_result=True) for _ in range(_MOST_KNOBS)]
        found, knobs = ctypes.c_int64(), {}
        self._get(config, _KNOBS_OF_CONFIG, _IS_DESCRIPTOR, found, (ctypes.c_void_p * _MOST_KNOBS)(*choices), _MOST_KNOBS)
        for choice in choices[: found.value]:
            kind, value, one = ctypes.c_int(), ctypes.c_int64(), ctypes.c_int64()
            self._get(choice, _TYPE_OF_KNOB, _IS_KNOB, one, ctypes.byref(kind))
            self._get(choice, _VALUE_OF_KNOB, _IS_INT64, one, ctypes.byref(value))
            knobs[kind.value] = value.value
        return knobs

    def _operation(self, make: Any, conv_pass: ConvPass, geometry: ConvGeometry) -> Any:
        kind, alpha, beta, described, *operands = _OPERATIONS[conv_pass]
        shapes = (geometry.weight, geometry.images, geometry.result)
        tensors = [
            make(
                _TENSOR,
                (_ALIGNMENT, _IS_INT64, [_BYTES]),
                (_ALIGNMENT + 1, _IS_TYPE, [_DATA_TYPES[geometry.dtype]]),
                (_ALIGNMENT + 2, _IS_INT64, shape),
                (_ALIGNMENT + 3, _IS_INT64, strides_of(shape, geometry.channels_last)),
                (_ALIGNMENT + 6, _IS_INT64, [number]),
            )
            for number, shape in enumerate(shapes, 1)
        ]
        of = make(
            _CONVOLUTION,
            (100, _IS_TYPE, [_SUMMED_IN.get(geometry.dtype, 0)]),
            (101, _IS_MODE, [_CROSS_CORRELATION]),
            (102, _IS_INT64, geometry.dilation),
            (103, _IS_INT64, geometry.stride),
            (104, _IS_INT64, geometry.padding),
            (105, _IS_INT64, geometry.padding),
            (106, _IS_INT64, [len(geometry.stride)]),
        )
        return make(
            kind,
            (alpha, _IS_FLOAT, [1.0]),
            (beta, _IS_FLOAT, [0.0]),
            (described, _IS_DESCRIPTOR, [of]),
            *((name, _IS_DESCRIPTOR, [tensor]) for name, tensor in zip(operands, tensors, strict=True)),
        )

    @contextmanager
    def _descriptors(self) -> Iterator[Any]:
        made: list[ctypes.c_void_p] = []

        def make(kind: int, *attributes: tuple[int, int, Any], is_result: bool = False) -> ctypes.c_void_p:
            descriptor = ctypes.c_void_p()
            self._check(self._library.cudnnBackendCreateDescriptor(kind, ctypes.byref(descriptor)))
            made.append(descriptor)
            for name, of_type, values in attributes:
                array = values if isinstance(values, bytes) else (_C_TYPES[of_type] * len(values))(*values)
                self._check(self._library.cudnnBackendSetAttribute(descriptor, name, of_type, ctypes.c_int64(len(values)), array))
            if not is_result:  # what cuDNN fills in is finished by it
                self._check(self._library.cudnnBackendFinalize(descriptor))
            return descriptor

        try:
            yield make
        finally:
            for descriptor in reversed(made):
                self._library.cudnnBackendDestroyDescriptor(descriptor)

    def _get(self, descriptor: Any, name: int, of_type: int, found: ctypes.c_int64, into: Any, most: int = 1) -> None:
        room = ctypes.c_int64(most)
        self._check(self._library.cudnnBackendGetAttribute(descriptor, name, of_type, room, ctypes.byref(found), into))

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise _RefusedError


_C_TYPES: dict[int, Any] = {
    _IS_TYPE: ctypes.c_int,
    _IS_MODE: ctypes.c_int,
    _IS_HEURISTIC: ctypes.c_int,
    _IS_INT64: ctypes.c_int64,
    _IS_FLOAT: ctypes.c_float,
    _IS_DESCRIPTOR: ctypes.c_void_p,
}
