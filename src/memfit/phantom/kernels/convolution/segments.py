"""Sums that Hopper's kernels split among blocks that would be idle otherwise.

::

    tiles of the result ──┬── as many as there are blocks, again and again ──> nothing
                          └── the rest: each is summed in segments, whose partial sums lie in the workspace

As many blocks run at a time as the GPU has room for, in clusters. The tiles that are left in the last round are cut into as many
segments as blocks are there for them, or into a power of two, where adding up more partial sums would take longer than segments
save. Long sums are cut into segments of some length.

Read off 6,525 kernels of cuDNN 9.19 on an H200 (benchmarks/truth/cudnn_segments.json.gz): partial sums are as measured in 94 of
100, 93 where images are volumes. Networks that took no part agree (``unet`` to ``video_split_amp`` in
benchmarks/results/accuracy_more.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from memfit.convolution import ConvGeometry, ConvPass
from memfit.data import FOLDER, parse_table, read_toml

BLOCKS_WITHOUT_DEVICE = 18
"""Number of blocks that cuDNN assumes if it cannot ask a driver."""

STEPS_OF_SUM = {"bf16": 26}
OTHER_STEPS_OF_SUM = 3
STEP_SIZE, STEP_DEPTH, STEP_POWER = 128 * 128, 64, 0.4
"""What doubling the number of segments costs, in steps of a kernel's main loop over a tile of that size and depth. Steps over
smaller tiles cost less, by this power of their size. It is twice that where all tiles are cut: nothing else runs then."""

SHORTEST_SEGMENT, MANY_SEGMENTS, MOST_SEGMENTS = 1056, 16, 128
"""Sums of more than ``MANY_SEGMENTS`` times so many products are cut into segments no shorter than that."""

DEPTHS = (32, 64)
"""Products that a step sums up, by cuDNN's number."""

ENGINES = {ConvPass.FORWARD: (62, 67), ConvPass.IMAGES: (67, 71), ConvPass.WEIGHTS: (65, 68)}
"""Those of cuDNN's engines whose kernels sum in segments."""
_TILE, _DEPTH, _WITHOUT_WORKSPACE, _CLUSTER_ROWS, _CLUSTER_COLUMNS = 2, 13, 25, 27, 28
KNOBS = (_TILE, _DEPTH, _WITHOUT_WORKSPACE, _CLUSTER_ROWS, _CLUSTER_COLUMNS)
"""cudnn_graph.h, cudnnBackendKnobType_t."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a kernel cuts its result, and the sums of which it is made."""

    rows: int
    columns: int
    depth: int
    cluster_rows: int = 1
    cluster_columns: int = 1

    @classmethod
    def of_engine(cls, conv_pass: ConvPass, engine: int, knobs: Mapping[int, int]) -> Tiling | None:
        """``None`` for kernels that do not sum in segments."""
        if engine not in ENGINES[conv_pass] or not set(KNOBS) <= set(knobs) or knobs[_WITHOUT_WORKSPACE]:
            return None
        tile = _facts().tiles.get(str(knobs[_TILE]))
        if tile is None:
            return None
        rows, columns = tile
        return cls(
            rows=rows, columns=columns, depth=DEPTHS[min(knobs[_DEPTH], 1)],
            cluster_rows=knobs[_CLUSTER_ROWS], cluster_columns=knobs[_CLUSTER_COLUMNS],
        )  # fmt: skip

    @property
    def cluster_size(self) -> int:
        return self.cluster_rows * self.cluster_columns


def num_resident_blocks(cluster_size: int, num_sms: int) -> int:
    """How many blocks run at a time."""
    clusters = _facts().clusters.get(str(cluster_size), measured_sms() // cluster_size - 1)
    return max(clusters * num_sms // measured_sms(), 1) * cluster_size


def measured_sms() -> int:
    """The multiprocessors of the GPU on which clusters were counted."""
    return _facts().clusters["1"]


@dataclass(frozen=True)
class SegmentFacts:
    """``[segments]`` of ``data/cudnn.toml``."""

    clusters: Mapping[str, int]
    """Clusters that run at a time, by blocks in each."""
    tiles: Mapping[str, tuple[int, int]]
    """Rows and columns of a tile by cuDNN's number for it."""


@cache
def _facts() -> SegmentFacts:
    return parse_table(SegmentFacts, read_toml(FOLDER / "cudnn.toml")["segments"], "cudnn.toml, segments")


def partial_sums(conv_pass: ConvPass, geometry: ConvGeometry, tiling: Tiling, num_blocks: int) -> int:
    """Bytes of the partial sums, in float32, where ``num_blocks`` run at a time."""
    num_tiles, num_steps = _tiles_and_steps(conv_pass, geometry, tiling)
    rest = num_tiles % num_blocks
    if not rest:
        return 0
    of_tile = (STEP_SIZE / (tiling.rows * tiling.columns)) ** STEP_POWER * STEP_DEPTH / tiling.depth
    price = STEPS_OF_SUM.get(geometry.dtype, OTHER_STEPS_OF_SUM) * of_tile * (2 if num_tiles < num_blocks else 1)
    num_segments = _num_segments(num_steps, num_blocks // rest, SHORTEST_SEGMENT // tiling.depth, price)
    return rest * num_segments * tiling.rows * tiling.columns * 4 if num_segments > 1 else 0


def _num_segments(num_steps: int, most: int, shortest: int, price: float) -> int:
    """``price``: the steps that a doubling of segments costs."""
    if num_steps // shortest > MANY_SEGMENTS:
        counts = [min(num_steps // shortest, most, MOST_SEGMENTS)]
    else:
        counts = [*(1 << power for power in range(most.bit_length())), min(most, MOST_SEGMENTS)]
    in_steps = sorted({_ceil(num_steps, _ceil(num_steps, count)) for count in counts})
    return min(in_steps, key=lambda count: _ceil(num_steps, count) + price * math.log2(count))


def _tiles_and_steps(conv_pass: ConvPass, of: ConvGeometry, tiling: Tiling) -> tuple[int, int]:
    """Tiles of the result, in whole clusters, and the steps in which each of them is summed up."""
    inputs, groups, taps = of.weight[1], of.groups, of.taps
    outputs = of.weight[0] // groups
    pixels_in, pixels_out = (tensor[0] * math.prod(tensor[2:]) for tensor in (of.images, of.result))
    if conv_pass is ConvPass.FORWARD:
        rows, columns, steps = _ceil(pixels_out, tiling.rows), _ceil(outputs, tiling.columns), _ceil(inputs, tiling.depth) * taps
    elif conv_pass is ConvPass.IMAGES:
        rows, columns, steps = _ceil(pixels_in, tiling.rows), _ceil(inputs, tiling.columns), _ceil(outputs, tiling.depth) * taps
    else:
        rows, columns, steps = _ceil(outputs, tiling.rows), _ceil(inputs, tiling.columns) * taps, _ceil(pixels_out, tiling.depth)
    in_clusters = _ceil(rows, tiling.cluster_rows) * _ceil(columns, tiling.cluster_columns) * tiling.cluster_size
    return in_clusters * groups, steps


def _ceil(value: int, of: int) -> int:
    return -(-value // of)
