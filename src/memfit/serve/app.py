"""The server: what can be asked of it, and what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from memfit.compare.cache import CellCache
from memfit.errors import ConfigError, MemfitError
from memfit.ledger import Ledger
from memfit.plan.plan_file import Plan, PlanCost
from memfit.plan.search.result import plain_recipe
from memfit.serve.controls import describe_controls
from memfit.serve.desk import BusyError, CancelledQuestionError, Desk
from memfit.serve.folder import LedgerFolder, report_page
from memfit.serve.guard import Door, DoorKeeper
from memfit.serve.instant import instant_answer, ways_to_fit
from memfit.serve.questions import Question, keep_config, read_question
from memfit.serve.wording import BAD, GOOD, OPEN, bars, categories, cost_line, head, module_rows
from memfit.views.html.markup import Markup, element

MOST_REQUEST_BYTES: Final = 1 << 20
OPEN_PATHS: Final = ("/serve.js", "/serve.css")
"""They are in every release of memfit, and hold nothing of the user's."""
_TYPES: Final = {"js": "text/javascript", "css": "text/css"}
_CANCELLED: Final = 499
"""As others call it: the client has closed the request."""
_LOOKS_AGAIN_SECONDS: Final = 1.0
"""Whether the client of a question still waits."""


class Server:
    """Answers for one folder."""

    def __init__(self, folder: Path, cache: CellCache | None = None, num_lanes: int | None = None) -> None:
        self._folder, self._cache, self._num_lanes = folder.resolve(), cache, num_lanes
        self._ledgers = LedgerFolder(self._folder)
        self._desk: Desk | None = None

    @property
    def desk(self) -> Desk:
        assert self._desk is not None, "the server has not started"
        return self._desk

    @asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._desk = Desk(self._cache, self._num_lanes)
        try:
            yield
        finally:
            self._desk.close()

    def routes(self) -> list[Route]:
        return [
            Route("/", self.page),
            Route("/serve.{kind}", self.built),
            Route("/api/controls", _told(self.controls)),
            Route("/api/instant", _told(self.instant), methods=["POST"]),
            Route("/api/exact", _told(self.exact), methods=["POST"]),
            Route("/api/leave", _told(self.leave), methods=["POST"]),
            Route("/api/config", _told(self.config), methods=["POST"]),
            Route("/api/ledgers", _told(self.ledgers)),
            Route("/api/overlay", _told(self.overlay)),
            Route("/api/running", _told(self.running)),
            Route("/report", self.report),
            Route("/diff", self.difference),
        ]

    # -- the page -----------------------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        head_parts = (
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            element("title", f"memfit – {self._folder.name}"),
            Markup('<link rel="stylesheet" href="/serve.css">'),
            Markup('<link rel="icon" href="data:,">'),
        )
        body = (
            element("noscript", "This page needs JavaScript."),
            Markup('<main id="app"></main><script src="/serve.js"></script>'),
        )
        return HTMLResponse(
            f"<!doctype html>\n{element('html', element('head', *head_parts), element('body', *body), lang='en')}\n"
        )

    async def built(self, request: Request) -> Response:
        kind = request.path_params["kind"]
        if kind not in _TYPES:
            return PlainTextResponse("memfit: there is nothing here\n", 404)
        data = (files("memfit.serve") / "built" / f"serve.{kind}").read_bytes()
        return Response(data, media_type=_TYPES[kind])

    # -- questions ----------------------------------------------------------------------------------------------------------------

    async def controls(self, request: Request) -> Any:
        return await run_in_threadpool(describe_controls, self._folder)

    async def instant(self, request: Request) -> Any:
        return instant_answer(self._read(await _body(request)), self._cache)

    async def exact(self, request: Request) -> Any:
        plain = await _body(request)
        question = self._read(plain)
        asking = asyncio.create_task(self.desk.ask(*_window_and_turn(plain), question))
        while not asking.done():
            await asyncio.wait({asking}, timeout=_LOOKS_AGAIN_SECONDS)
            if not asking.done() and await request.is_disconnected():
                asking.cancel()  # this question alone: its window may have asked another one meanwhile
        found = await asking
        if "error" in found:
            return head(question) | {"kind": "error", "tone": BAD, "headline": found["error"], "details": found["details"]}
        return _exact(question, found["seen"])

    async def leave(self, request: Request) -> Any:
        self.desk.leave(*_window_and_turn(await _body(request)))
        return {}

    async def config(self, request: Request) -> Any:
        return {"subject": keep_config(await _limited(request), self.desk.folder)}

    def _read(self, plain: Any) -> Question:
        return read_question(plain, self._folder, self.desk.folder)

    # -- ledgers ------------------------------------------------------------------------------------------------------------------

    async def ledgers(self, request: Request) -> Any:
        return {"ledgers": await run_in_threadpool(self._ledgers.listed)}

    async def overlay(self, request: Request) -> Any:
        return await run_in_threadpool(self._ledgers.overlay, request.query_params.getlist("file"))

    async def running(self, request: Request) -> Any:
        return await run_in_threadpool(self._ledgers.running, request.query_params.get("file", ""))

    async def report(self, request: Request) -> Response:
        """The report page of ledgers of the folder, or of an answer."""
        query = request.query_params
        if not (key := query.get("answer")):
            return await _page(lambda: self._ledgers.page(query.getlist("file")))

        def answer() -> str:
            path = self.desk.ledger_of(key)
            if path is None:
                raise ConfigError("that answer is no longer kept: ask again")
            return report_page([Ledger.load(path)], ["answer"])

        return await _page(answer)

    async def difference(self, request: Request) -> Response:
        """The page of what two ledgers of the folder differ in."""
        query = request.query_params
        return await _page(lambda: self._ledgers.difference(query.get("before", ""), query.get("after", "")))


async def _page(make: Callable[[], str]) -> Response:
    """A page that brings a policy of its own, which lets nothing out."""
    try:
        page = await run_in_threadpool(make)
    except (MemfitError, OSError) as error:
        return PlainTextResponse(f"memfit: {error}\n", 400)
    return HTMLResponse(page, headers={"Content-Security-Policy": "frame-ancestors 'self'"})


def _exact(question: Question, seen: dict[str, Any]) -> dict[str, Any]:
    return head(question) | {
        "kind": "exact",
        "tone": OPEN if seen["is_open"] and seen["fits"] else GOOD if seen["fits"] else BAD,
        "headline": seen["headline"],
        "covered": seen["covered"],
        "gpus": bars(seen["smallest_fit"], tuple(seen["communicators"]), is_bound=False, wanted=question.options.gpu),
        "categories": categories(seen["breakdown"]),
        "modules": [*module_rows([(path, size) for path, size in seen["modules"]])],
        "ladder": seen["ladder"],
        "remarks": seen["remarks"],
        "time": seen["time"],
        "cost": cost_line(question, seen["tokens_per_second"]),
        "picture": seen["picture"],
        "tried": seen["tried"],
        "ways": [] if seen["fits"] else ways_to_fit(question),
        "assumptions": seen["assumptions"],
        "plan": _plan(question, seen),
    }


def _plan(question: Question, seen: dict[str, Any]) -> str:
    """The plan file of a configuration that fits; empty where there is none."""
    asked = question.configuration
    if asked is None or not asked.is_model or not seen["fits"]:
        return ""
    cost = PlanCost(
        peak_allocated_bytes=seen["peak_allocated"],
        peak_reserved_bytes=seen["peak_reserved"],
        smallest_fit_bytes=seen["smallest_fit"],
        step_seconds=seen["step_seconds"] or None,
    )
    made = Plan(
        gpu=asked.gpu,
        budget_bytes=asked.options.capacity,
        world_size=asked.world_size,
        recipe=plain_recipe(asked),
        figures=cost,
        assumptions=tuple(seen["assumptions"]),
    )
    return json.dumps(made.to_json(), indent=1)


def _window_and_turn(plain: dict[str, Any]) -> tuple[str, int]:
    window, turn = str(plain.get("window") or "")[:64], plain.get("turn", 0)
    if not window or not isinstance(turn, int):
        raise ConfigError("a question says which window asks, and which of its questions it is: window, turn")
    return window, turn


def _told(endpoint: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An endpoint whose result is JSON; what cannot be is told in a line, and never with a traceback."""

    async def answer(request: Request) -> Response:
        try:
            return JSONResponse(await endpoint(request))
        except (CancelledQuestionError, asyncio.CancelledError):
            return JSONResponse({"error": "asked something else"}, _CANCELLED)
        except BusyError:
            return JSONResponse({"error": "too many questions wait already: try again in a moment"}, 503)
        except (MemfitError, ValueError, OSError) as error:
            return JSONResponse({"error": str(error) or type(error).__name__}, 400)

    return answer


async def _limited(request: Request) -> bytes:
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > MOST_REQUEST_BYTES:
            raise ConfigError("that is too large")
    return bytes(found)


async def _body(request: Request) -> dict[str, Any]:
    try:
        plain = json.loads(await _limited(request))
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError("a question is a JSON object") from error
    if not isinstance(plain, dict):
        raise ConfigError("a question is a JSON object")
    return plain


def make_app(server: Server, door: Door) -> Any:
    """The whole server, as uvicorn runs it."""
    app = Starlette(routes=server.routes(), lifespan=server.lifespan)
    return DoorKeeper(app, door, OPEN_PATHS)
