"""A worker of the page that answers at once, without torch: the same small run for every question.

A question with ``seq`` 777 takes until it is cancelled; one with ``seq`` 666 fails.
"""

from __future__ import annotations

import json
import signal
import sys
import threading

from memfit.serve.seen import see_file
from memfit.testing import ledger

RUN = ledger(
    "alloc 4GiB parameter layers.0.w on cuda:0; step; enter forward layers.0; alloc 2GiB x on cuda:0; exit; "
    "enter backward layers.0; alloc 6GiB gradient layers.0.g on cuda:0; free x; exit; step"
)


def main() -> None:
    is_cancelled = threading.Event()
    signal.signal(signal.SIGUSR1, lambda number, frame: is_cancelled.set())
    seen = see_file(RUN)
    for line in sys.stdin:
        job = json.loads(line)
        seq = job["asked"]["inputs"].get("seq") if "asked" in job else None
        answer: dict[str, object] = {}
        if seq == 777:
            is_cancelled.clear()
            while not is_cancelled.wait(0.02):
                pass
            answer = {"error": "its process died of SIGKILL", "details": ""}
        elif seq == 666:
            answer = {"error": "build failed: it cannot be", "details": "Traceback of the user's own"}
        elif seq is not None:
            RUN.save(job["ledger"])
            answer = {"seen": seen}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
