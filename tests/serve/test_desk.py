"""Exact answers: the last question of a window counts, many windows take turns, and nothing piles up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("starlette")

from memfit.serve.desk import MOST_ANSWERS

QUESTION = {"kind": "model", "subject": "gpt2", "gpu": "T4", "window": "a"}


def question(seq: int, window: str = "a") -> dict[str, object]:
    return QUESTION | {"words": {"seq": seq}, "window": window}


def test_an_exact_answer_has_everything(served):
    status, found = served.post("/api/exact", question(128) | {"price": 2.0})
    assert status == 200
    assert found["kind"] == "exact"
    assert found["headline"].startswith("The") or "GiB" in found["headline"]
    assert found["categories"][0]["key"] == "gradient"
    assert found["picture"]["areas"]
    status, page = served.get(f"/report?answer={found['key']}")
    assert status == 200
    assert "Memory over the run" in page


def test_the_next_question_of_a_window_cancels_the_one_before(served):
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(served.post, "/api/exact", question(777))
        while not served.server.desk.num_waiting:
            pass
        assert served.post("/api/exact", question(128))[0] == 200
        assert slow.result()[0] == 499


def test_another_window_waits_for_its_turn_and_a_window_that_leaves_frees_it(served):
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(served.post, "/api/exact", question(777, "slow"))
        while not served.server.desk.num_waiting:
            pass
        other = threads.submit(served.post, "/api/exact", question(128, "other"))
        served.post("/api/leave", {"window": "slow"})
        assert slow.result()[0] == 499
        assert other.result()[0] == 200


def test_an_error_of_the_user_is_an_answer(served):
    status, found = served.post("/api/exact", question(666))
    assert status == 200
    assert (found["kind"], found["headline"]) == ("error", "build failed: it cannot be")
    assert "Traceback" in found["details"]


def test_many_questions_in_a_row_and_at_once_leave_nothing_behind(served):
    """The long version, with a thousand and with memory measured, is benchmarks/speed/serve_load.py."""
    with ThreadPoolExecutor(20) as threads:
        found = threads.map(lambda n: served.post("/api/exact", question(64 + n, f"window {n % 20}"))[0], range(100))
        assert set(found) <= {200, 499}
    desk = served.server.desk
    assert desk.num_waiting == 0
    assert len([*desk.folder.glob("*.memfit")]) <= MOST_ANSWERS
    assert served.post("/api/exact", question(100))[0] == 200


def test_what_is_no_question_is_told(served):
    for body in (b"", b"[]", b"{" * 10_000, b"\xff", b'{"kind": "model"}'):
        assert served.post("/api/instant", body)[0] == 400
    assert served.post("/api/instant", b"x" * (1 << 21))[0] == 400
    assert served.post("/api/exact", QUESTION | {"window": ""})[0] == 400


def test_ledgers_of_the_folder(served):
    status, found = served.get("/api/ledgers")
    assert status == 200
    rows = {row["name"]: row for row in found["ledgers"]}
    assert rows["broken.memfit"]["isBroken"]
    assert "8.00 MiB" in rows["run.memfit"]["text"]
    assert served.get("/api/overlay?file=run.memfit&file=other.memfit")[1]["peaks"] == ["8.00 MiB", "12.00 MiB"]
    assert served.get("/diff?before=run.memfit&after=other.memfit")[0] == 200
    assert served.get("/diff?before=run.memfit&after=../other.memfit")[0] == 400
    assert served.get("/api/running?file=run.memfit")[1]["ranks"][0]["peak"] == "8.00 MiB"
    for name in ("../run.memfit", "/etc/hostname", "train.py", "", "broken.memfit"):
        assert served.get(f"/report?file={name}")[0] == 400
        assert served.get(f"/api/overlay?file={name}")[0] == 400
