"""Partial sums of tiles that are left when all blocks have had theirs. Sizes are cuDNN's own, asked on an H200."""

from __future__ import annotations

import pytest

from benchmarks.kernels.cudnn_on_gpu import TYPES, rows_of
from memfit.convolution import ConvGeometry, ConvPass
from memfit.phantom.clock.describe import type_name
from memfit.phantom.kernels.convolution import layouts, library, segments
from memfit.phantom.kernels.convolution.library import Answer
from memfit.phantom.kernels.convolution.segments import Tiling, num_resident_blocks, partial_sums
from memfit.phantom.target import Target

H200 = Target.parse("H200", "2.11+cu130")
PASSES = {"FORWARD": ConvPass.FORWARD, "OF_INPUT": ConvPass.IMAGES, "OF_WEIGHT": ConvPass.WEIGHTS}
"""As the measurements name them."""


def convolution(batch, inputs, outputs, sizes, kernel=3, dtype="bf16", groups=1, stride=1):
    dims = len(sizes)
    padding = kernel // 2
    result = tuple((size + 2 * padding - kernel) // stride + 1 for size in sizes)
    return ConvGeometry(
        images=(batch, inputs, *sizes), weight=(outputs, inputs // groups, *[kernel] * dims), result=(batch, outputs, *result),
        dtype=dtype, channels_last=True, stride=(stride,) * dims, padding=(padding,) * dims, dilation=(1,) * dims,
    )  # fmt: skip


def knobs(tile, depth, rows, columns):
    return {2: tile, 13: depth, 18: 1, 25: 0, 27: rows, 28: columns}


@pytest.mark.parametrize(
    ("conv_pass", "question", "engine", "chosen", "answered"),
    [
        # 28 tiles, 4 segments each: no tile without
        (ConvPass.WEIGHTS, convolution(6, 80, 80, (32, 10, 10)), 65, knobs(0, 1, 1, 4), 7340527),
        # 176 tiles, of which 56 are left, 2 segments each
        (ConvPass.WEIGHTS, convolution(16, 160, 160, (16, 14, 14)), 65, knobs(1, 1, 1, 8), 3670399),
        # 32 tiles, 3 segments
        (ConvPass.WEIGHTS, convolution(64, 160, 80, (100, 100)), 65, knobs(1, 1, 1, 8), 3146271),
        # 6,144 tiles, of which 24 are left: 5 segments would be possible, 4 are faster
        (ConvPass.FORWARD, convolution(3, 112, 112, (512, 512), dtype="f32"), 67, knobs(0, 0, 8, 1), 6291907),
        # 1,568 steps: no segment is shorter than 33 of them
        (ConvPass.WEIGHTS, convolution(8, 64, 128, (16, 56, 56), 1, "f32", stride=2), 68, knobs(1, 0, 1, 2), 94 * 32768),
        # 196 steps: a power of two
        (ConvPass.WEIGHTS, convolution(8, 128, 256, (8, 28, 28), 1, "f32", stride=2), 68, knobs(1, 0, 1, 2), 32 * 32768),
        # groups are tiles of their own
        (ConvPass.WEIGHTS, convolution(32, 128, 128, (56, 56), dtype="f32", groups=2), 68, knobs(5, 0, 1, 1), 2065063),
        (ConvPass.IMAGES, convolution(16, 1024, 640, (25, 25)), 67, knobs(0, 1, 4, 2), 5243203),
    ],
)  # fmt: skip
def test_the_law_gives_what_cudnn_answered(conv_pass, question, engine, chosen, answered):
    tiling = Tiling.of_engine(conv_pass, engine, chosen)
    predicted = partial_sums(conv_pass, question, tiling, num_resident_blocks(tiling.cluster_size, 132))
    assert 0 <= answered - predicted < 1024  # counters beside the sums


def test_the_law_holds_for_most_answers():
    """What cuDNN answered with a real device and without one, for thousands of convolutions: the difference is partial sums."""
    differences = []
    for conv_pass, question, tiling, with_device, without_device in answers():
        sums = [
            partial_sums(conv_pass, question, tiling, blocks)
            for blocks in (num_resident_blocks(tiling.cluster_size, 132), 18 // tiling.cluster_size * tiling.cluster_size)
        ]
        differences.append(abs(with_device - without_device - sums[0] + sums[1]))
    assert len(differences) > 6000
    assert sum(each < 2048 for each in differences) / len(differences) > 0.92
    assert sum(each <= 1.05 * 2**20 for each in differences) / len(differences) > 0.955


def answers():
    rows = rows_of("convolutions")
    for number, name, engine, tile, depth, cluster_rows, cluster_columns, with_device, without_device in rows_of("segments"):
        _, _, batch, inputs, outputs, sizes, kernel, stride, padding, dilation, groups, transposed, *_ = rows[number]
        steps = zip(sizes, kernel, stride, padding, dilation, strict=True)
        extent = layouts._spread if transposed else layouts._shrink
        ends = [(batch, inputs, *sizes), (batch, outputs, *(extent(*each, 0) for each in steps))]
        x, y = reversed(ends) if transposed else ends
        question = ConvGeometry(
            images=x, weight=(y[1], x[1] // groups, *kernel), result=y, dtype=type_name(TYPES[rows[number][0]]),
            channels_last=False, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation),
        )  # fmt: skip
        tiling = Tiling.of_engine(PASSES[name], engine, knobs(tile, depth, cluster_rows, cluster_columns))
        yield PASSES[name], question, tiling, with_device, without_device


def test_tiles_that_fill_all_blocks_are_not_cut():
    full = convolution(132, 64, 128, (8, 16))
    tiling = Tiling(rows=128, columns=128, depth=64)
    assert partial_sums(ConvPass.FORWARD, full, tiling, 132) == 0


def test_short_sums_are_not_cut():
    short, long = (convolution(8, inputs, 128, (16, 16), dtype="f32") for inputs in (8, 512))
    tiling = Tiling(rows=128, columns=128, depth=32)
    assert partial_sums(ConvPass.FORWARD, short, tiling, 132) == 0 < partial_sums(ConvPass.FORWARD, long, tiling, 132)


@pytest.mark.parametrize(
    ("engine", "chosen"),
    [
        (9, knobs(0, 1, 1, 4)),
        (65, knobs(0, 1, 1, 4) | {25: 1}),
        (65, {2: 0, 13: 1}),
        (65, knobs(77, 1, 1, 4)),
    ],
    ids=["another engine", "without a workspace", "other knobs", "an unknown tile"],
)
def test_other_kernels_are_not_cut(engine, chosen):
    assert Tiling.of_engine(ConvPass.WEIGHTS, engine, chosen) is None


def test_clusters_leave_sms_idle_and_scale_with_the_gpu():
    assert [num_resident_blocks(size, 132) for size in (1, 2, 3, 4, 8, 16)] == [132, 132, 117, 120, 120, 112]
    assert num_resident_blocks(4, 66) == 60
    assert num_resident_blocks(16, 8) == 16


def test_an_answer_without_a_device_is_put_right():
    """cuDNN reckons with 18 blocks then, and with a MiB of partial sums that are not there on an H200."""
    question = convolution(4, 672, 2048, (25, 25), dtype="f32")
    answer = Answer(workspace_bytes=77_794_003, engine=71, knobs=knobs(0, 0, 4, 1))
    assert 0 <= library._with_segments(H200.gpu, ConvPass.IMAGES, question, answer) - 76_745_232 < 1024
    assert library._with_segments(H200.gpu, ConvPass.IMAGES, question, Answer(5, 9, {})) == 5


def test_the_tiles_are_those_of_the_engines():
    assert all(len(tile) == 2 and tile[0] * tile[1] * 4 <= 131072 for tile in segments._facts().tiles.values())
