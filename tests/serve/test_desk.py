"""Exact answers: the last question of a window counts, many windows take turns, and nothing piles up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from helpers.hanging import HANGS_AFTER, wait_until

pytest.importorskip("starlette")

from memfit.serve import app
from memfit.serve.desk import MOST_ANSWERS, AnswerLane, CancelledQuestionError
from memfit.serve.questions import read_question

QUESTION = {"kind": "model", "subject": "gpt2", "gpu": "T4", "window": "a"}


def question(seq: int, window: str = "a", turn: int = 0) -> dict[str, object]:
    return QUESTION | {"words": {"seq": seq}, "window": window, "turn": turn}


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
        wait_until(lambda: served.server.desk.num_waiting)
        assert served.post("/api/exact", question(128))[0] == 200
        assert slow.result()[0] == 499


def test_a_question_or_a_goodbye_that_comes_late_does_not_end_the_current_question(served):
    with ThreadPoolExecutor(1) as threads:
        current = threads.submit(served.post, "/api/exact", question(777, turn=2))
        wait_until(lambda: served.server.desk.num_waiting)
        assert served.post("/api/exact", question(128, turn=1))[0] == 499
        served.post("/api/leave", {"window": "a", "turn": 1})
        assert served.server.desk.num_waiting == 1
        served.post("/api/leave", {"window": "a", "turn": 2})
        assert current.result()[0] == 499
    assert served.post("/api/exact", question(128, turn=1))[0] == 200, "nobody else asks"


class ClosedRequest:
    """A request whose client goes away just as its window asks something else on another connection."""

    def __init__(self, server: app.Server, asked: dict[str, object], then_asked: dict[str, object]) -> None:
        self._server, self._asked, self._then_asked = server, asked, then_asked
        self.then: asyncio.Task[dict[str, Any]] | None = None

    async def stream(self) -> AsyncIterator[bytes]:
        yield json.dumps(self._asked).encode()

    async def is_disconnected(self) -> bool:
        if self.then is None:
            folder = self._server.desk.folder
            asking = self._server.desk.ask("a", 2, read_question(self._then_asked, folder, folder))
            self.then = asyncio.create_task(asking)
            await asyncio.sleep(0)
        return True


def test_a_connection_that_ends_takes_only_its_own_question_along(folder: Path, quick_workers, monkeypatch):
    async def race() -> dict[str, Any]:
        server = app.Server(folder, None, num_lanes=1)
        async with server.lifespan(None):  # type: ignore[arg-type]
            request: Any = ClosedRequest(server, question(777, turn=1), question(128, turn=2))
            with pytest.raises(CancelledQuestionError):
                await server.exact(request)
            return await request.then

    monkeypatch.setattr(app, "_LOOKS_AGAIN_SECONDS", 0.02)
    with ThreadPoolExecutor(1) as thread:  # where a browser is open, this one has a running loop already
        assert "seen" in thread.submit(asyncio.run, race()).result()


def test_another_window_waits_for_its_turn_and_a_window_that_leaves_frees_it(served):
    with ThreadPoolExecutor(2) as threads:
        slow = threads.submit(served.post, "/api/exact", question(777, "slow"))
        wait_until(lambda: served.server.desk.num_waiting)
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


@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5])
def test_a_lane_that_is_stopped_starts_no_worker_again(quick_workers, tmp_path: Path, seconds: float):
    lane, asked = AnswerLane(), read_question(question(777), tmp_path, tmp_path)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(lane.make, asked, tmp_path / "a.memfit", "")
        time.sleep(seconds)  # before its worker is there, while it starts, and while it answers
        lane.stop()
        assert answer.result(HANGS_AFTER)["error"]
    assert lane.make(asked, tmp_path / "b.memfit", "")["error"] == "the server has ended"
