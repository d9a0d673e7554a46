"""Everything that looks at one device of a ledger looks at the same one."""

from __future__ import annotations

from dataclasses import replace

from memfit.allocator import requests_from_ledger
from memfit.analysis import build_report, diff_ledgers
from memfit.explain import explain
from memfit.integrations.steps import step_scalars
from memfit.ledger import Failure
from memfit.testing import ledger
from memfit.units import MIB

RUN = ledger("step; alloc 1MiB a on cuda:0; alloc 1MiB b on cuda:0; free a; alloc 9MiB c on cpu; alloc 3MiB d on cuda:1")
"""More blocks on cuda:0, more bytes on the CPU, and the higher peak of the two GPUs on cuda:1."""


def test_report_diff_allocator_scalars_and_explanation_agree():
    requests = requests_from_ledger(RUN)
    diff = diff_ledgers(RUN, RUN)
    out_of_memory = replace(RUN, info=replace(RUN.info, failure=Failure(message="out of memory", time_ns=10**9)))
    assert RUN.main_device is not None
    assert RUN.devices[RUN.main_device].name == "cuda:1"
    assert build_report(RUN).devices[0].name == "cuda:1"
    assert diff.before.peak is not None
    assert diff.before.peak.device == "cuda:1"
    assert requests.size.tolist() == [3 * MIB]
    assert step_scalars(RUN)["memfit/peak_bytes"] == 3 * MIB
    assert explain(out_of_memory).holdings.device == "cuda:1"
