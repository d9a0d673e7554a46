"""Which stage has which blocks, and which rank has which stage."""

import pytest

from memfit.errors import ConfigError
from memfit.parallel import Parallelism
from memfit.parallel.stages import blocks_of_stages, stages_of_rank


def test_the_embedding_and_the_head_count_as_a_block_each():
    assert [len(blocks) for blocks in blocks_of_stages(126, 8)] == [15, 16, 16, 16, 16, 16, 16, 15]
    assert [len(blocks) for blocks in blocks_of_stages(32, 4)] == [8, 9, 8, 7]


@pytest.mark.parametrize(("num_blocks", "num_stages"), [(32, 1), (2, 2), (61, 16), (126, 64)])
def test_every_block_is_somewhere_and_no_stage_is_empty(num_blocks: int, num_stages: int):
    stages = blocks_of_stages(num_blocks, num_stages)
    assert [block for blocks in stages for block in blocks] == list(range(num_blocks))
    assert all(len(blocks) for blocks in stages)


def test_too_few_blocks_are_refused():
    with pytest.raises(ConfigError, match="5 blocks are too few for 4 stages"):
        blocks_of_stages(5, 4)


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [("1f1b", [[0], [1], [2]]), ("interleaved-1f1b", [[0, 3], [1, 4], [2, 5]]), ("dualpipe-v", [[0, 5], [1, 4], [2, 3]])],
)
def test_which_rank_has_which_stage(schedule: str, stages: list[list[int]]):
    wanted = Parallelism(pp=3, schedule=schedule)
    assert [stages_of_rank(wanted, rank) for rank in range(3)] == stages


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tp": 0}, "tp takes a whole number"),
        ({"schedule": "2f2b"}, "schedule '2f2b' is not known: use one of 1f1b"),
        ({"float8": "int8"}, "float8 'int8' is not known"),
        ({"ep": 2, "tp": 4}, "no multiple of tp=4"),
    ],
)
def test_what_cannot_be_meant_is_refused(options, problem: str):
    with pytest.raises(ConfigError, match=problem):
        Parallelism(**options)


def test_a_world_of_another_size_is_refused():
    with pytest.raises(ConfigError, match="take a multiple of 8 ranks, but the world has 12"):
        Parallelism(tp=4, pp=2).check_world(12)
