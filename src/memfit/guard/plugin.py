"""What pytest loads."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import pytest

from memfit.guard.session import GuardSession, asked_by_environment, begin_session, current_session, end_session

if TYPE_CHECKING:
    from memfit.predict.result import Prediction

WIDTH = 110


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("memfit").addoption(
        "--memfit-update",
        action="store_true",
        help="write the golden ledgers of memfit.assert_no_regression instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    update = config.getoption("--memfit-update") or asked_by_environment()
    begin_session(GuardSession(update, config.rootpath, "run pytest with --memfit-update"))


def pytest_unconfigure() -> None:
    end_session()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for path in current_session().written:
        terminalreporter.write_line(f"memfit: wrote {path}")


_PREDICTIONS = pytest.StashKey[list["Prediction"]]()


@pytest.fixture
def memfit_predict(request: pytest.FixtureRequest) -> Callable[..., Prediction]:
    """``memfit.predict``. If the test fails, it is shown where the memory of what was predicted goes."""
    from memfit.predict.api import predict

    predictions: list[Prediction] = request.node.stash.setdefault(_PREDICTIONS, [])

    def predict_and_keep(build: Callable[[], Callable[[], Any]], **target: Any) -> Prediction:
        prediction: Prediction = predict(build, **target)
        predictions.append(prediction)
        return prediction

    return predict_and_keep


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" and report.failed:
        for prediction in item.stash.get(_PREDICTIONS, []):
            report.sections.append((f"memfit: {prediction!r}", _shown(prediction)))
    return report


def _shown(prediction: Prediction) -> str:
    from rich.console import Console

    from memfit.views import show

    text = io.StringIO()
    show(prediction.report, Console(file=text, width=WIDTH, color_system=None))
    return text.getvalue()
