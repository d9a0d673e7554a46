"""Files of requests, told apart by what they hold, not by their names."""

from __future__ import annotations

from pathlib import Path

from memfit.allocator.requests import Requests
from memfit.allocator.sources.ledgers import requests_from_ledger
from memfit.allocator.sources.torch_snapshots import requests_from_snapshot
from memfit.allocator.sources.traces import requests_from_trace
from memfit.errors import TraceError
from memfit.ledger import Ledger
from memfit.ledger.storage import MAGIC
from memfit.reading import RefusedFileError, read_regular, read_start

NUM_START_BYTES = 64
"""Enough to tell what a file holds."""
_ZIP, _PICKLE = b"PK", b"\x80"
_KINDS = "Pass a ledger that memfit wrote, an allocator's log (.npz), or a file from torch.cuda.memory._dump_snapshot()"


def load_requests(path: Path | str) -> Requests:
    """Reads a ledger, an allocator trace (``.npz``) or a PyTorch snapshot (a pickle, of which nothing is executed)."""
    path = Path(path)
    try:
        start = read_start(path, NUM_START_BYTES)
        if is_ledger(start):
            return requests_from_ledger(Ledger.load(path))
        if start.startswith(_ZIP):
            return requests_from_trace(path, read_regular(path))
        if start.startswith(_PICKLE):
            return requests_from_snapshot(path, read_regular(path))
    except RefusedFileError as error:
        raise TraceError(path, error.problem, error.advice) from error
    raise TraceError(path, "is neither a ledger, nor an allocator's log, nor a PyTorch snapshot", _KINDS)


def is_ledger(data: bytes) -> bool:
    """From a file's first bytes: a journal's own, or the length of a safetensors header, which may begin like a pickle or a zip."""
    return data.startswith(MAGIC) or data[4:9] == b"\0\0\0\0{"
