"""How a run stands, from its levels: the worst rank first."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from memfit.analysis.status import find_status, worst_first
from memfit.cli import main
from memfit.ledger import Category
from memfit.ledger.schema import Levels
from memfit.testing import ledger as made
from memfit.units import GIB, MIB
from memfit.views.status import draw_status


def with_levels(rank=0, steps=100, growth=0, reserved=10 * GIB, **info):
    run = made("alloc 4MiB parameter w on cuda:0; step; alloc 8MiB a on cuda:0; free a")
    rows = [[step, step, 0, step, 0, 9 * GIB, 5 * GIB + step * growth, reserved, 6 * GIB, MIB, -1] for step in range(steps)]
    levels = Levels.from_rows(np.array(rows).ravel().tolist())
    return replace(run, levels=levels, info=replace(run.info, rank=rank, world_size=2, capacity_bytes=80 * GIB, **info))


def test_a_status_has_the_last_level_and_the_highest_peak():
    status = find_status(with_levels())
    assert (status.step, status.allocated_bytes, status.reserved_bytes) == (99, 5 * GIB, 10 * GIB)
    assert (status.peak_bytes, status.unused_bytes, status.headroom_bytes) == (9 * GIB, 4 * GIB, 70 * GIB)
    assert (status.growth_per_step, status.steps_left) == (0, None)
    assert status.breakdown == {Category.PARAMETER: 4 * MIB}


def test_growth_says_when_the_device_is_full():
    status = find_status(with_levels(growth=MIB))
    assert status.growth_per_step == MIB
    assert status.steps_left == 74 * 1024


def test_without_levels_the_events_tell():
    status = find_status(made("alloc 4MiB parameter w on cuda:0; step; alloc 8MiB a on cuda:0"))
    assert (status.allocated_bytes, status.peak_bytes, status.reserved_bytes, status.growth_per_step) == (
        12 * MIB,
        12 * MIB,
        None,
        None,
    )


def test_the_rank_with_the_least_room_comes_first():
    ranks = worst_first(find_status(with_levels(rank, reserved=size * GIB)) for rank, size in enumerate((10, 60, 20)))
    assert [status.rank for status in ranks] == [1, 2, 0]


def test_an_empty_ledger_has_a_status_too():
    assert find_status(made("")).allocated_bytes == 0


def test_the_view_names_what_matters():
    console = Console(width=120, record=True, file=io.StringIO())
    ranks = [find_status(with_levels(rank, growth=MIB, alarms=("leak: 1 MiB a step stay",))) for rank in range(2)]
    console.print(draw_status(ranks, console))
    text = console.export_text()
    for words in (
        "least room",
        "grows by 1.00 MiB a step: full in 75,776 steps",
        "! leak: 1 MiB a step",
        "70.00 GiB of 80.00 GiB",
        "step 99",
    ):
        assert words in text


def test_top_finds_the_files_of_all_ranks(tmp_path, capsys):
    for rank in range(2):
        with_levels(rank).save(tmp_path / f"run.rank{rank}.memfit")
    assert main(["top", "--once", str(tmp_path / "run.memfit")]) == 0
    assert "rank 0, cuda:0" in capsys.readouterr().out
    assert main(["top", "--json", str(tmp_path / "run.memfit")]) == 0
    assert capsys.readouterr().out.count('"headroom_bytes"') == 2
    assert main(["top", "--once", str(tmp_path / "none.memfit")]) == 2
    assert "has the job used the GPU yet?" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--once", "--json"])
def test_top_reads_one_file(tmp_path, flag):
    with_levels().save(tmp_path / "run.memfit")
    assert main(["top", flag, str(tmp_path / "run.memfit")]) == 0
