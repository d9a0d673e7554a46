"""Which of the predicted ranks each rank of a job is like, and how ledgers say so."""

from memfit.phantom.distributed.layout import Layout
from memfit.predict.ranks import kinds_of, likeness, with_place
from memfit.testing import ledger

MESH_AXES = (("pp", 2), ("dp", 4))


def test_a_rank_is_like_the_one_of_its_stage():
    layout = Layout(world_size=8, axes=MESH_AXES, pipeline=(0, 4))
    assert likeness(layout, [kind.rank for kind in kinds_of(layout)]) == [0, 0, 0, 0, 4, 4, 4, 7]


def test_the_last_of_an_axis_with_unequal_shards_is_another():
    layout = Layout(world_size=8, axes=MESH_AXES, pipeline=(0, 4), uneven=((0, 1, 2, 3),))
    assert likeness(layout, [kind.rank for kind in kinds_of(layout)]) == [0, 0, 0, 3, 4, 4, 4, 7]


def test_named_ranks_say_nothing_about_other_stages():
    layout = Layout(world_size=8, axes=MESH_AXES, pipeline=(0, 4))
    assert likeness(layout, [4]) == [-1, -1, -1, -1, 4, 4, 4, 4]


def test_everybody_is_counted_once():
    pipeline = tuple(range(0, 16_384, 2048))
    layout = Layout(
        world_size=16_384, axes=(("pp", 8), ("dp", 256), ("tp", 8)), pipeline=pipeline, uneven=(tuple(range(0, 2048, 8)),)
    )
    kinds = kinds_of(layout)
    like = likeness(layout, [kind.rank for kind in kinds])
    assert [like.count(kind.rank) for kind in kinds] == [kind.num_ranks for kind in kinds]


def test_a_ledger_says_whom_it_stands_for():
    layout = Layout(world_size=8, axes=MESH_AXES, pipeline=(0, 4))
    told = with_place(ledger("alloc 1MiB parameter w"), layout, [0, 0, 4, 0, 4, 4, 4, 0]).info
    assert told.mesh == "pp=2,dp=4"
    assert told.stands_for == "0-1,3,7"
