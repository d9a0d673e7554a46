"""What ``memfit top`` prints of a rank."""

import io

import pytest
from rich.console import Console

from memfit.analysis.status import Status
from memfit.ledger import INIT
from memfit.views.status import draw_status


def printed(device: str, step: int) -> str:
    status = Status(
        rank=0,
        device=device,
        step=step,
        allocated_bytes=0,
        reserved_bytes=None,
        unused_bytes=None,
        peak_bytes=0,
        capacity_bytes=None,
        growth_per_step=None,
        breakdown={},
        breakdown_step=INIT,
        alarms=(),
        problem="",
        is_running=True,
    )
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(draw_status([status], console))
    return console.export_text().splitlines()[0].rstrip()


@pytest.mark.parametrize(
    ("device", "step", "said"),
    [("", INIT, "rank 0  no step finished yet"), ("cuda:0", 2, "rank 0, cuda:0  step 2 finished")],
)
def test_a_run_that_has_only_begun_has_no_finished_step(device: str, step: int, said: str) -> None:
    assert printed(device, step) == said
