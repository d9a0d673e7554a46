"""The served page in Chromium: every control, what is wrong, two windows, a server that ends, hostile pages and names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from helpers.browsing import Visit
from helpers.hanging import wait_until

from memfit.choices import AXES
from memfit.ledger.storage import RUNNING
from memfit.testing import ledger

EXACT = '.now[data-kind="exact"]'
BOUND = '.now[data-kind="bound"]'
ANSWERS_WITHIN_SECONDS = 120
"""The workers of these tests answer at once, so that this is for the browser, on a machine that is busy with other things."""
NETWORK = "Failed to load resource"
"""What the browser itself says of a request that was refused."""


@pytest.fixture
def open_served(browser) -> Iterator[Callable[..., Visit]]:
    """Opens the page of a server. Unless it is forgiven, nothing may stand on the console, and nothing be asked of anybody else."""
    contexts, visits = [], []

    def open_served(served, *, forgive: bool = False, question: dict[str, object] | None = None, **context) -> Visit:
        contexts.append(browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | context))
        contexts[-1].set_default_timeout(1000 * ANSWERS_WITHIN_SECONDS)
        visit = Visit(contexts[-1].new_page())
        visit.watch()
        visit.page.goto(served.url + ("#" + json.dumps(question) if question else ""))
        visit.page.wait_for_selector("html[data-ready]")
        if not forgive:
            visits.append((visit, served.port))
        return visit

    yield open_served
    for context in contexts:
        context.close()
    for visit, port in visits:
        assert visit.complaints == []
        assert all(url.startswith((f"http://127.0.0.1:{port}/", "data:")) for url in visit.requests)


def asked_by(visit: Visit) -> dict[str, object]:
    """What the controls say, from the address."""
    found: dict[str, object] = json.loads(unquote(visit.page.evaluate("location.hash.slice(1)")))
    return found


def wait_for_answer(visit: Visit, selector: str = EXACT) -> None:
    """Returns when the page shows such an answer; says what it shows in its place where none comes."""
    try:
        visit.page.wait_for_selector(selector)
    except Exception as error:
        raise AssertionError(f"no {selector} in {ANSWERS_WITHIN_SECONDS} s; the page says: {visit.text('body')[:600]}") from error


def test_an_instant_answer_is_marked_and_the_exact_one_takes_its_place(served, open_served):
    visit = open_served(served)
    wait_for_answer(visit)
    assert visit.text(".badge") == "exact prediction"
    assert "GiB" in visit.text(".answer")
    assert visit.page.locator(".gpus tr").count() >= 16
    assert visit.page.locator(".plot polygon").count() >= 2
    visit.page.fill("#c-seq", "777")
    wait_for_answer(visit, BOUND)
    assert visit.text(".badge").startswith("at once, from bounds: it needs at least this · the exact answer is being predicted")
    assert "at least" in visit.text(".answer")


def test_every_control_says_what_it_is_set_to(served, open_served):
    visit = open_served(served, forgive=True)  # not all of them go together
    page = visit.page
    page.locator(".more summary").click()
    for name, axis in AXES.items():
        field = page.locator(f"#c-{name}")
        if axis.choices:
            value = [*axis.choices][-1]
            field.select_option(value)
        else:
            value = "dp=8" if name == "mesh" else "4"
            field.fill(value)
        words = asked_by(visit)["words"]
        assert isinstance(words, dict)
        assert str(words[name]) == value
        field.select_option("") if axis.choices else field.fill("")
        assert name not in asked_by(visit)["words"]
    for name, value in (("alloc_conf", "expandable_segments:True"), ("interconnect", "none")):
        page.fill(f"#c-{name}", value)
        assert asked_by(visit)[name] == value
        page.fill(f"#c-{name}", "")
    for slider in page.locator(".slider").all():
        number = slider.locator("input[type=number]")
        slider.locator("input[type=range]").fill("3")
        shown = number.input_value()
        assert int(shown) > 1
        name = str(number.get_attribute("id")).removeprefix("c-")
        asked = asked_by(visit)
        assert str((asked["words"] | asked)[name]) == shown
        slider.locator("input[type=range]").fill("0")
    page.select_option("#gpu", "T4")
    page.locator(".slider input[type=range]").first.fill("5")
    page.fill("#c-price", "2.5")
    asked = asked_by(visit)
    assert (asked["gpu"], asked["world_size"], asked["price"]) == ("T4", 32, 2.5)
    page.select_option("#gpu", "")
    page.fill("#other-gpu", "24GiB")
    assert asked_by(visit)["gpu"] == "24GiB"
    page.select_option("#gpu", "T4")
    assert page.locator("#other-gpu").is_hidden()
    for kind, subject in (("Config", "config.json"), ("Function", "train.py:build"), ("Script", "train.py"), ("Model", "gpt2")):
        page.get_by_role("button", name=kind, exact=True).click()
        page.fill("#subject", subject)
        assert asked_by(visit)["subject"] == subject


def test_by_keyboard(served, open_served):
    visit = open_served(served, forgive=True)  # names are not known while they are being typed
    visit.page.focus("#subject")
    visit.page.keyboard.type("gpt2")
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("T")
    assert (asked_by(visit)["subject"], asked_by(visit)["gpu"]) == ("gpt2", "T4")
    wait_for_answer(visit)
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("ArrowRight")
    assert asked_by(visit)["world_size"] != 8


def test_a_dropped_config_and_a_wrong_one(served, open_served, tmp_path: Path):
    visit = open_served(served, forgive=True)
    visit.page.get_by_role("button", name="Config").click()
    wrong = tmp_path / "config.json"
    wrong.write_text("{ not json")
    visit.page.set_input_files(".drop input", wrong)
    visit.page.wait_for_selector(".ask .alarm:not([hidden])")
    assert "no config.json of Hugging Face" in visit.text(".ask .alarm")
    visit.page.set_input_files(".drop input", served.folder / "config.json")
    wait_until(lambda: visit.page.input_value("#subject").startswith("dropped:"))
    visit.page.get_by_role("button", name="Model").click()
    dropped = visit.page.evaluate_handle(
        """text => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([text], "config.json"));
            return transfer;
        }""",
        (served.folder / "config.json").read_text(),
    )
    visit.page.dispatch_event("body", "drop", {"dataTransfer": dropped})  # anywhere on the page
    wait_until(lambda: visit.page.input_value("#subject").startswith("dropped:"))
    visit.page.fill("#c-seq", "16")
    visit.page.fill("#c-world_size", "1")
    wait_for_answer(visit)
    assert [line for line in visit.complaints if NETWORK not in line] == []


def test_what_cannot_be_is_told_beside_the_controls(served, open_served):
    visit = open_served(served, forgive=True)
    visit.page.fill("#subject", "llama3-9b")
    visit.page.wait_for_selector(".ask .alarm:not([hidden])")
    assert "did you mean llama3-8b" in visit.text(".ask .alarm")
    visit.page.fill("#subject", "gpt2")
    wait_for_answer(visit)
    assert visit.page.locator(".ask .alarm").is_hidden()
    assert [line for line in visit.complaints if NETWORK not in line] == []


def test_a_function_is_not_called_with_what_another_question_had_set(served, open_served):
    """The page begins with a model and full checkpointing, an argument that few functions take."""
    visit = open_served(served, forgive=True)
    assert visit.page.input_value("#c-checkpointing") == "full"
    visit.page.get_by_role("button", name="Function", exact=True).click()
    visit.page.fill("#subject", "train.py:build")
    wait_for_answer(visit, '.now[data-kind="none"]')
    assert visit.page.locator(".ask .alarm").is_hidden()
    assert asked_by(visit)["words"] == {}


def test_an_error_of_the_users_code_is_shown(served, open_served):
    visit = open_served(served, question={"kind": "model", "subject": "gpt2", "gpu": "T4", "words": {"seq": 666}})
    wait_for_answer(visit, '.now[data-kind="error"]')
    assert visit.text(".answer") == "build failed: it cannot be"
    assert "Traceback" in visit.text("pre.details")


def test_side_by_side_copy_and_what_makes_it_fit(served, open_served):
    asked = {"kind": "model", "subject": "llama3-8b", "gpu": "RTX-4090", "world_size": 8, "words": {"seq": 777, "batch": 8}}
    visit = open_served(served, question=asked, permissions=["clipboard-read", "clipboard-write"])
    visit.page.wait_for_selector(".ways button")
    visit.page.get_by_role("button", name="Copy command").click()
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert copied == "memfit predict --model llama3-8b --gpu RTX-4090 --world-size 8 --batch 8 --seq 777"
    visit.page.get_by_role("button", name="Keep beside").click()
    before = asked_by(visit)
    visit.page.locator(".now .ways button").first.click()
    assert asked_by(visit) != before
    assert visit.page.locator(".kept .card").count() == 1
    assert "batch 8" in visit.text(".kept .recipe")
    visit.page.get_by_role("button", name="Take away").click()
    assert visit.page.locator(".kept .card").count() == 0


def test_an_answer_is_copied_as_python_and_as_a_plan_and_its_report_opens(served, open_served):
    visit = open_served(served, permissions=["clipboard-read", "clipboard-write"])
    wait_for_answer(visit)
    for label, says in (("Copy Python", "memfit.predict(model='llama3-8b', "), ("Copy plan", '"gpu": "H100-80GB"')):
        visit.page.get_by_role("button", name=label).click()
        wait_until(lambda says=says: says in visit.page.evaluate("navigator.clipboard.readText()"))
    with visit.page.context.expect_page() as opened:
        visit.page.get_by_role("link", name="Open the full report").click()
    opened.value.wait_for_selector("html[data-ready]")
    assert opened.value.locator(".answer").count() == 1


def test_a_script_says_what_was_seen_of_it_and_what_its_time_rests_on_or_why_it_failed(served, open_served):
    """The one answer that no worker of the page makes: memfit run does."""
    (served.folder / "trains.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(2):\n"
        "    model(torch.ones(4, 8, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    visit = open_served(served, question={"kind": "script", "subject": "trains.py", "gpu": "T4", "world_size": 1})
    wait_for_answer(visit)
    said = visit.text(".card")
    assert "trains.py on T4" in said
    assert "Seen: 2 training steps" in said
    assert "No operator was timed on T4" in said
    (served.folder / "fails.py").write_text("import torch\ntorch.ones(2, 2).cuda() @ torch.ones(3, 3).cuda()\n")
    visit.page.fill("#subject", "fails.py")
    wait_for_answer(visit, '.now[data-kind="error"]')
    assert visit.text(".answer") == "fails.py failed."
    assert visit.text("pre.details").startswith("Traceback")


def test_two_windows_do_not_disturb_each_other(served, open_served):
    slow = open_served(served, question={"kind": "model", "subject": "gpt2", "gpu": "T4", "words": {"seq": 777}})
    wait_for_answer(slow, BOUND)
    wait_until(lambda: served.server.desk.num_waiting)
    other = open_served(served, question={"kind": "model", "subject": "gpt2", "gpu": "T4", "words": {"seq": 128}})
    wait_for_answer(other, BOUND)
    slow.page.fill("#c-seq", "256")  # frees the worker that both wait for
    wait_for_answer(slow)
    wait_for_answer(other)
    assert "seq 256" in slow.text(".recipe")
    assert "seq 128" in other.text(".recipe")


def test_a_question_that_the_server_dropped_is_asked_again_while_it_is_the_current_one(served, open_served):
    visit = open_served(served, forgive=True, question={"kind": "model", "subject": "gpt2", "gpu": "T4", "words": {"seq": 777}})
    wait_until(lambda: served.server.desk.num_waiting)
    turns = []

    def drop_twice(route) -> None:
        turns.append(route.request.post_data_json["turn"])
        route.fulfill(status=499, json={"error": "asked something else"}) if len(turns) < 3 else route.continue_()

    visit.page.route("**/api/exact", drop_twice)
    visit.page.fill("#c-seq", "128")
    wait_for_answer(visit)
    assert "seq 128" in visit.text(".recipe")
    assert turns == [2, 3, 4], "each with a turn of its own, after the first question's"


def test_ledgers_are_opened_laid_over_and_compared_and_their_names_are_text(served, open_served):
    visit = open_served(served)
    page = visit.page
    page.get_by_role("button", name="Ledgers").click()
    page.wait_for_selector(".list th")
    names = page.locator(".list th").all_inner_texts()
    assert "<img src=x onerror=alert(1)>.memfit" in names
    assert page.locator(".list img").count() == 0
    for name in ("run.memfit", "other.memfit"):
        page.get_by_label(f"choose {name}", exact=True).check()
    page.get_by_role("button", name="Lay over").click()
    page.wait_for_selector("polyline")
    assert page.locator("polyline").count() == 2
    page.get_by_role("button", name="Compare two").click()
    page.frame_locator("iframe.report").get_by_text("other.memfit").first.wait_for()
    page.get_by_role("button", name="How it stood").first.click()
    page.wait_for_selector(".rank")
    page.locator(".list tr", has_text="run.memfit").last.get_by_role("button", name="Open").click()
    page.frame_locator("iframe.report").locator("html[data-ready]").wait_for()


def test_a_watched_job_is_live_and_several_ledgers_are_one_page(served, open_served):
    visit = open_served(served)
    page = visit.page
    path = served.folder / "live.memfit"

    def stand(size: int, problem: str) -> None:
        made = ledger(f"alloc {size}MiB parameter w on cuda:0; step")
        object.__setattr__(made, "info", replace(made.info, source="measured", problem=problem))
        made.save(path)

    try:
        stand(4, RUNNING)
        page.get_by_role("button", name="Ledgers").click()
        page.locator("tr.running").get_by_role("button", name="Live").click()
        page.get_by_text("live.memfit, live").wait_for()
        assert "4.00 MiB in use" in visit.text(".rank")
        stand(64, RUNNING)
        page.get_by_text("64.00 MiB in use").wait_for()
        stand(64, "")
        page.get_by_text("live.memfit, as it ended").wait_for()
    finally:
        path.unlink()
    for name in ("run.memfit", "other.memfit"):
        page.get_by_label(f"choose {name}", exact=True).check()
    page.get_by_role("button", name="One page of all").click()
    shown = page.frame_locator("iframe.report")
    shown.locator("html[data-ready]").wait_for()
    assert shown.locator(".tab").count() >= 2


def test_a_server_that_ends_is_told(served, open_served):
    visit = open_served(served, forgive=True)
    wait_for_answer(visit)
    served.stop()
    visit.page.fill("#c-batch", "2")
    visit.page.wait_for_selector(".banner:not([hidden])")
    assert "Start it again with memfit serve" in visit.text(".banner")


def test_a_page_of_another_site_gets_nothing(served, serve, browser):
    other = serve()  # another port is another origin
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{other.port}/serve.css")
    tried = page.evaluate(
        """async ([url, token]) => {
            const got = [];
            for (const path of ["/", "/api/controls", "/serve.js"])
                for (const headers of [{}, {"X-Memfit-Token": token}])
                    for (const mode of ["cors", "no-cors"])
                        try {
                            got.push(await (await fetch(url + path + "?token=" + token, {mode, headers})).text());
                        } catch { got.push(""); }
            return got;
        }""",
        [f"http://127.0.0.1:{served.port}", "a token for tests"],
    )
    assert set(tried) == {""}
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_page(served, open_served, scheme: str):
    visit = open_served(served, viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True)
    wait_for_answer(visit)
    assert visit.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    glance = visit.page.locator(".glance")  # the answer in a line, while the controls take the screen
    assert glance.inner_text() == visit.text(".now .answer")
    glance.click()
    wait_until(lambda: glance.is_hidden())
    assert visit.page.evaluate("scrollY > 0")
