from __future__ import annotations

import json
from dataclasses import asdict, replace

from memfit.analysis import build_report, current_breakdown, find_peak, find_step_peaks, gather_module_stats
from memfit.analysis.report import NUM_BLOCKS, NUM_POINTS
from memfit.ledger import Category, Coverage, RunInfo
from memfit.ledger.run_info import Failure
from memfit.testing import ledger

RUN = ledger(
    """
    alloc 4KiB parameter a.w on cuda:0; alloc 1MiB batch; step
    enter forward a; alloc 1KiB x on cuda:0; exit; enter backward a; free x; exit
    """
)


def test_the_report_has_what_the_functions_say():
    report = build_report(RUN)
    cuda, cpu = report.devices
    assert (report.num_events, report.num_blocks, report.num_steps, report.duration_ns) == (9, 3, 1, 8_000)
    assert cuda.peak == find_peak(RUN, 0)
    assert cuda.current == current_breakdown(RUN, 0) == {Category.PARAMETER: 4096}
    assert cuda.steps == tuple(find_step_peaks(RUN, 0))
    assert cuda.modules == tuple(gather_module_stats(RUN, 0))
    assert [(group.path, group.bytes_at_peak) for group in cuda.module_groups] == [("a", 5120)]
    assert [life.op for life in cuda.largest_blocks] == ["a.w", "x"]
    assert cuda.timeline.event == (-1, 0, 4, 7)
    assert cuda.timeline.time_ns == (0, 0, 4_000, 7_000)
    assert cuda.timeline.total_bytes == (0, 4096, 5120, 4096)
    assert cuda.timeline.category_bytes == {Category.PARAMETER: (0, 4096, 4096, 4096), Category.FORWARD_TEMPORARY: (0, 0, 1024, 0)}
    assert [share.category for share in cuda.shares_at_peak] == [Category.PARAMETER, Category.FORWARD_TEMPORARY]
    assert (cuda.bytes_outside_modules, cpu.bytes_outside_modules) == (0, 2**20)


def test_gpus_come_first_and_among_them_the_fullest():
    run = ledger("alloc 1GiB host; alloc 1KiB x on cuda:0; alloc 2KiB y on cuda:1; alloc 2GiB z on meta")
    assert [device.name for device in build_report(run).devices] == ["cuda:1", "cuda:0", "meta", "cpu"]


def test_the_json_has_every_figure_in_plain_types():
    plain = build_report(replace(RUN, info=RunInfo(versions={"torch": "2.13"}, assumptions=("a guess",)))).to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["info"] == {
        "source": "measured",
        "versions": {"torch": "2.13"},
        "gpu": "",
        "asked": {},
        "command": "",
        "made_at": "",
        "speed": {},
        "sources": {},
        "clock": "",
        "mesh": "",
        "stands_for": "",
        "rank": 0,
        "world_size": 1,
        "num_process_groups": 0,
        "num_peers": 0,
        "problem": "",
        "assumptions": ["a guess"],
        "alloc_conf": "",
        "failure": asdict(Failure()),
        "witness": "operators",
        "capacity_bytes": 0,
        "alarms": [],
        "notes": [],
        "covered": asdict(Coverage()),
    }
    cuda = plain["devices"][0]
    assert cuda["peak"] == {
        "device": "cuda:0",
        "event": 4,
        "time_ns": 4_000,
        "size_bytes": 5120,
        "step": 0,
        "phase": "forward",
        "module": "a",
        "breakdown": {"parameter": 4096, "forward_temporary": 1024},
    }
    assert cuda["steps"][0]["peak"]["phase"] is None
    assert cuda["timeline"]["category_bytes"]["parameter"] == [0, 4096, 4096, 4096]


def test_long_lists_are_cut_and_the_peak_is_not():
    script = ";".join(f"alloc {1 + i % 97} x{i}; free x{i}" for i in range(2 * NUM_POINTS)) + "; alloc 1KiB top; free top;"
    many = ";".join(f"alloc {i + 1} y{i}" for i in range(NUM_BLOCKS + 5))
    (cpu,) = build_report(ledger(script + many)).devices
    assert len(cpu.timeline.total_bytes) <= NUM_POINTS
    assert max(cpu.timeline.total_bytes) == cpu.peak.size_bytes == 1024
    assert len(cpu.largest_blocks) == 1
    (cpu,) = build_report(ledger(many)).devices
    assert [life.size_bytes for life in cpu.largest_blocks] == list(range(NUM_BLOCKS + 5, 5, -1))


def test_nothing_makes_an_empty_report():
    assert build_report(ledger("")).devices == ()


def test_reports_of_the_same_ledger_are_equal():
    assert build_report(RUN) == build_report(RUN)
