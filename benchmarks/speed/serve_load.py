"""Does the server of the page hold out? 1,000 instant questions in a row and 20 windows at once, its memory before and after, and
how long a first answer takes in a browser.

::

    python benchmarks/speed/serve_load.py [--questions 1000] [--browser]
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MODELS = ("gpt2", "llama3-8b", "llama3-70b", "qwen3-8b", "mixtral-8x7b")
GPUS = ("T4", "RTX-4090", "H100-80GB", "H200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--browser", action="store_true", help="measure the first answer in Chromium")
    args = parser.parse_args()
    command = [sys.executable, "-u", "-m", "memfit", "serve", "--port", "8791", "--no-open", "--no-cache"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        address = server.stdout.readline().strip()
        token = re.search(r"token=(\S+)", address)[1]
        load(server.pid, token, args.questions)
        if args.browser:
            in_browser(address)
    finally:
        server.terminate()
        server.wait()


def load(pid: int, token: str, number: int) -> None:
    ask(token, "/api/exact", question(0) | {"window": "first"})
    seconds = [timed(token, n) for n in range(number // 10)]
    before = memory(pid)
    seconds = sorted(timed(token, n) for n in range(number))
    print(f"{number} in a row: median {1000 * seconds[number // 2]:.1f} ms, worst {1000 * seconds[-1]:.1f} ms")
    print(f"memory of the server: {before / 1024:.1f} MiB before, {memory(pid) / 1024:.1f} MiB after")
    with ThreadPoolExecutor(20) as windows:
        started = time.perf_counter()
        statuses = [*windows.map(lambda n: ask(token, "/api/exact", question(n % 7) | {"window": f"w{n % 20}"})[0], range(100))]
        took = time.perf_counter() - started
    answered, replaced = statuses.count(200), statuses.count(499)
    print(f"100 exact questions of 20 windows: {took:.1f} s, {answered} answered, {replaced} replaced by later ones")
    print(f"memory of the server: {memory(pid) / 1024:.1f} MiB, processes: {len(children(pid))}")


def question(n: int) -> dict[str, object]:
    words = {"batch": 1 + n % 16, "seq": 128 if n < 7 else 512 * (1 + n % 2)}
    model = MODELS[n % len(MODELS)] if n >= 7 else "gpt2"
    return {"kind": "model", "subject": model, "gpu": GPUS[n % len(GPUS)], "world_size": 1, "words": words}


def timed(token: str, n: int) -> float:
    started = time.perf_counter()
    status, _ = ask(token, "/api/instant", question(n + 7))
    assert status == 200
    return time.perf_counter() - started


def ask(token: str, path: str, body: dict[str, object]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", 8791, timeout=600)
    connection.request("POST", path, json.dumps(body), {"X-Memfit-Token": token})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def memory(pid: int) -> int:
    """KiB of the server itself."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


def children(pid: int) -> list[str]:
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def in_browser(address: str) -> None:
    """From the change of a control to the answer on the page, for models by name that were not asked about before."""
    from playwright.sync_api import sync_playwright

    from memfit.models import MODELS as ALL

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector(".now .card")
        found = {}
        for model in ALL:
            took = page.evaluate(
                """model => new Promise(done => {
                    const now = document.querySelector(".now"), field = document.querySelector("#subject");
                    const before = performance.now();
                    new MutationObserver((_, seen) => {
                        if (now.querySelector(".recipe")?.textContent.startsWith(model + " ")) {
                            seen.disconnect();
                            done(performance.now() - before);
                        }
                    }).observe(now, {childList: true, subtree: true});
                    field.value = model;
                    field.dispatchEvent(new Event("input"));
                })""",
                model,
            )
            found[model] = took
        slowest = max(found, key=lambda model: found[model])
        print(f"first answer of {len(found)} models: median {statistics.median(found.values()):.0f} ms, ", end="")
        print(f"worst {found[slowest]:.0f} ms ({slowest})")
        browser.close()


if __name__ == "__main__":
    main()
