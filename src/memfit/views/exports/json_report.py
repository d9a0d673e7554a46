"""The report as one JSON object: what ``memfit show --json`` prints."""

from __future__ import annotations

import json

from memfit.analysis import build_report
from memfit.ledger import Ledger


def write_report(ledger: Ledger) -> bytes:
    return json.dumps(build_report(ledger).to_json(), indent=1).encode()
