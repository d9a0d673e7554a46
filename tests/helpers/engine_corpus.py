"""Runs that once broke an engine: one JSON file each, in ``tests/allocator/engine/corpus``.

::

    {"why": "...", "requests": "a 2TiB; free a", "conf": "", "torch": "2.12", "capacity": null, "memory": 1099511627776,
     "segments": {"0": [address, size]}}        of which requests the recorded run got new segments, and where
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from helpers import ROOT
from helpers.allocator_requests import asked
from helpers.extreme_runs import ExtremeRun
from memfit.allocator import parse_alloc_conf
from memfit.allocator.engine import Rules, prepare

CORPUS = sorted((ROOT / "tests" / "allocator" / "engine" / "corpus").glob("*.json"))


def read_case(path: Path) -> ExtremeRun:
    case = json.loads(path.read_text())
    requests, how = asked(case["requests"]), parse_alloc_conf(case.get("conf", ""), case.get("torch", "2.12"))
    address, size = requests.segment_address.copy(), requests.segment_size.copy()
    for number, place in case.get("segments", {}).items():
        address[int(number)], size[int(number)] = place
    requests = replace(requests, segment_address=address, segment_size=size)
    prepared = prepare(requests, how, use_recorded_addresses=True)
    return ExtremeRun(requests, prepared, Rules.of(how, case.get("capacity"), case.get("memory")), case["why"])
