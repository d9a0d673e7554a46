"""What is known of a failure, on disk."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import safetensors.numpy
from helpers.failed_runs import failed
from hypothesis import given
from hypothesis import strategies as st

from memfit.errors import LedgerFormatError
from memfit.ledger import Failure, Ledger
from memfit.units import GIB

amounts = st.none() | st.integers(0, 2**59)
failures = st.builds(
    Failure,
    message=st.text(max_size=20),
    time_ns=st.integers(0, 2**59),
    device=st.text(max_size=8),
    needed_bytes=amounts,
    free_bytes=amounts,
    total_bytes=amounts,
    limit_bytes=amounts,
    allocated_bytes=amounts,
    reserved_bytes=amounts,
)


@given(failure=failures)
def test_it_is_what_it_was_after_json(failure: Failure):
    assert Failure.from_json(json.loads(json.dumps(asdict(failure)))) == failure


def test_a_ledger_keeps_it(tmp_path: Path):
    run = failed("alloc 1MiB w on cuda:0", 20, 2)
    run.save(tmp_path / "oom.memfit")
    assert Ledger.load(tmp_path / "oom.memfit").same_as(run)


@pytest.mark.parametrize(
    "wrong",
    [
        {"needed_bytes": "many"},
        {"needed_bytes": -1},
        {"needed_bytes": 2**70},
        {"time_ns": None},
        {"message": 3},
        {"limit_bytes": True},
    ],
)
def test_a_file_with_something_else_in_it_is_refused(tmp_path: Path, wrong: dict[str, Any]):
    path = tmp_path / "oom.memfit"
    failed("alloc 1MiB w on cuda:0", 20, 2).save(path)
    with safetensors.safe_open(path, "numpy") as file:
        columns, metadata = {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118
    words = json.loads(metadata["words"])
    words["info"]["failure"] |= wrong
    path.write_bytes(safetensors.numpy.save(columns, metadata | {"words": json.dumps(words)}))
    with pytest.raises(LedgerFormatError):
        Ledger.load(path)


@pytest.mark.parametrize(
    ("more", "capacity"),
    [
        ({}, None),
        ({"limit_bytes": GIB}, GIB),
        ({"free_bytes": 0, "reserved_bytes": 3 * GIB}, 3 * GIB),
        ({"free_bytes": 2 * GIB, "reserved_bytes": 3 * GIB, "limit_bytes": 4 * GIB}, 4 * GIB),
    ],
)
def test_what_the_allocator_could_get(more: dict[str, int], capacity: int | None):
    assert replace(Failure(message="out of memory"), **more).capacity == capacity
    assert not Failure(**more)
