"""How each result is drawn, in a notebook and on a terminal: the list that ``memfit.drawing`` loads.

A view that a prediction on a terminal does not need is imported when it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text

from memfit.allocator import Verdict
from memfit.analysis import build_report
from memfit.drawing import Drawing, register, text_of
from memfit.ledger import Ledger
from memfit.views.escaping import printable
from memfit.views.terminal import report_sections
from memfit.views.verdicts import assumption_line, growth_words, host_words, verdict_sections, words_about_others
from memfit.views.words.timing import time_words

if TYPE_CHECKING:
    from memfit.compare import Comparison
    from memfit.largest import LargestFit
    from memfit.plan import Plan
    from memfit.plan.search import PlanSearch
    from memfit.predict.ranks import JobPrediction
    from memfit.predict.result import Prediction


def _ledger_sections(ledger: Ledger, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
    return report_sections(build_report(ledger), console)


def _ledger_html(ledger: Ledger) -> str:
    from memfit.views.notebook import notebook_html

    return notebook_html(ledger)


def _prediction_html(prediction: Prediction) -> str:
    from memfit.views.notebook import notebook_html

    return notebook_html(prediction.ledger, prediction.report, prediction.verdict)


def _prediction_sections(prediction: Prediction, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    yield from verdict_sections(prediction.verdict, console, prediction.ledger.info)
    others = [*words_about_others(prediction.device, prediction.verdicts_of_others)]
    style = "" if all(verdict.fits for verdict in prediction.verdicts_of_others.values()) else "bold red"
    yield from (Text(printable(line), style=style) for line in others)
    yield from (Text(printable(line), style="yellow") for line in growth_words(prediction.growth, prediction.verdict))
    yield from (Text(printable(line)) for line in (*host_words(prediction.host), *time_words(prediction)))
    if assumed := assumption_line(prediction.assumptions):
        yield Text(assumed, style="yellow")


def _job_sections(job: JobPrediction, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    from memfit.views.jobs import job_sections

    return job_sections(job, console)


def _verdict_sections(verdict: Verdict, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    return verdict_sections(verdict, console)


def _as_text(result: JobPrediction | Verdict | LargestFit) -> str:
    """What a terminal shows, for a notebook."""
    return f'<pre style="line-height:1.3;overflow-x:auto;white-space:pre">{escape(text_of(result))}</pre>'


def _comparison_sections(comparison: Comparison, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    from memfit.views.comparison import draw
    from memfit.views.words.comparison import make_sheet

    return draw(make_sheet(comparison), console, options)


def _plan_sections(found: PlanSearch, console: Console, options: ConsoleOptions) -> Iterable[RenderableType]:
    from memfit.views.plan import plan_sections

    return plan_sections(found, console, options)


def _largest_sections(found: LargestFit, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    from memfit.views.words.largest import answer, attempts, title

    yield Text(printable(title(found)))
    yield from (Text(printable(line), style="bold" if number == 0 else "") for number, line in enumerate(answer(found)))
    yield Text(printable(attempts(found)), style="dim")
    yield from (Text(f"assumed: {printable(sentence)}", style="dim") for sentence in found.assumptions)


def _comparison_html(comparison: Comparison) -> str:
    from memfit.views.notebook_tables import comparison_html

    return comparison_html(comparison)


def _search_html(found: PlanSearch) -> str:
    from memfit.views.notebook_tables import search_html

    return search_html(found)


def _plan_html(plan: Plan) -> str:
    from memfit.views.notebook_tables import plan_html

    return plan_html(plan)


def _plan_lines(plan: Plan, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    yield Text(repr(plan))
    yield from (Text(printable(line)) for line in plan.code().splitlines())


register("Ledger", Drawing(html=_ledger_html, terminal=_ledger_sections))
register("Prediction", Drawing(html=_prediction_html, terminal=_prediction_sections))
register("JobPrediction", Drawing(html=_as_text, terminal=_job_sections))
register("Comparison", Drawing(html=_comparison_html, terminal=_comparison_sections))
register("LargestFit", Drawing(html=_as_text, terminal=_largest_sections))
register("PlanSearch", Drawing(html=_search_html, terminal=_plan_sections))
register("Plan", Drawing(html=_plan_html, terminal=_plan_lines))
register("Verdict", Drawing(html=_as_text, terminal=_verdict_sections))
