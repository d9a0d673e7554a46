"""The ranks of a job as a grid of its mesh, from which each can be shown."""

from dataclasses import replace

from memfit.ledger import RunInfo
from memfit.testing import ledger

JOB = {0: ("0-3", 6), 4: ("4-6", 3), 7: ("7", 4)}
"""Ranks, whom they stand for, and their peaks in GiB."""


def job(mesh: str = "pp=2,dp=4", world_size: int = 8):
    runs = {}
    for rank, (ranks, peak) in JOB.items():
        info = RunInfo(source="predicted", gpu="H200", mesh=mesh, stands_for=ranks, rank=rank, world_size=world_size)
        runs[f"rank {rank}"] = replace(ledger(f"alloc {peak}GiB parameter w on cuda:0"), info=info)
    return runs


def test_every_rank_has_its_place_and_its_peak(open_page):
    page = open_page(job()).page
    rows = page.locator(".mesh tbody tr")
    assert [row.inner_text().split("\t")[1:] for row in rows.all()] == [
        ["ranks 0 to 3: 6.00 GiB"],
        ["ranks 4 to 6: 3.00 GiB", "rank 7: 4.00 GiB"],
    ]
    assert "pp 2 x dp 4" in page.locator(".mesh caption").inner_text()


def test_a_place_shows_its_run(open_page):
    page = open_page(job()).page
    page.locator(".mesh button", has_text="rank 7").click()
    assert page.locator("article.run:visible").get_attribute("aria-label") == "rank 7"
    assert page.locator(".runs tr.shown").inner_text().startswith("rank 7")
    page.locator(".runs button", has_text="rank 4").click()
    assert page.locator(".mesh td.shown").inner_text() == "ranks 4 to 6: 3.00 GiB"


def test_a_mesh_that_cannot_be_is_not_drawn(open_page):
    assert open_page(job(mesh="pp=3,dp=4")).page.locator(".mesh").count() == 0
    assert open_page(job(mesh="pp=<b>")).page.locator(".mesh").count() == 0
