"""What the display methods print, in PyTorch's layout."""

from __future__ import annotations

import re
from enum import Enum

from memfit.compat.trackers.torch_categories import TOTAL, SnapshotState
from memfit.compat.trackers.tracker_snapshots import Snapshot

_UNIT_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def print_snapshot(snapshot: Snapshot, units: str, tabulate: bool) -> None:
    if not snapshot:
        print("No memory tracked.")
        return
    divisor = _divisor(units)
    shown = {device: sizes for device, sizes in snapshot.items() if _scaled(sizes[TOTAL], divisor) > 0}
    if tabulate:
        headers = ["Device", *(_word(key) for key in next(iter(snapshot.values())))]
        rows = [[str(device), *(f"{_scaled(v, divisor)} {units}" for v in sizes.values())] for device, sizes in shown.items()]
        print_table(rows, headers)
    else:
        for device, sizes in shown.items():
            print(f"Device: {device}")
            for key, size in sizes.items():
                print(f"\t{_word(key)}: {_scaled(size, divisor)} {units}")


def print_states(snapshots: dict[SnapshotState, list[Snapshot]], units: str, tabulate: bool) -> None:
    if tabulate:
        _print_states_table(snapshots, units)
        return
    for state, taken in snapshots.items():
        print(state.value)
        for number, snapshot in enumerate(taken, start=1):
            print(f"# {number}:")
            print_snapshot(snapshot, units, tabulate=False)
    print()


def _print_states_table(snapshots: dict[SnapshotState, list[Snapshot]], units: str) -> None:
    divisor = _divisor(units)
    rows = []
    for state, taken in snapshots.items():
        for number, snapshot in enumerate(taken, start=1):
            label = f"{state.value} # {number}"
            for device, sizes in snapshot.items():
                if _scaled(sizes[TOTAL], divisor) > 0:
                    named = {_word(key): f"{_scaled(size, divisor)} {units}" for key, size in sizes.items()}
                    rows.append({"State & Call": label, "Device": str(device)} | named)
                    label = ""
    print_table(rows, "keys")


def natural_order(name: str) -> list[tuple[int, int | str]]:
    """Sorts ``layers.10`` after ``layers.9``."""
    return [(0, int(part)) if part.isdigit() else (1, part.lower()) for part in re.split("([0-9]+)", name)]


def print_table(rows: list[list[str]] | list[dict[str, str]], headers: list[str] | str) -> None:
    try:
        from tabulate import tabulate
    except ImportError as error:
        raise ImportError("tabulate=True needs the tabulate package: pip install 'memfit[tables]'") from error
    print(tabulate(rows, headers=headers, tablefmt="rst"))


def _divisor(units: str) -> int:
    if units not in _UNIT_BYTES:
        raise ValueError(f"Unsupported unit: {units}. Supported units are: {', '.join(_UNIT_BYTES)}")
    return _UNIT_BYTES[units]


def _scaled(size: int, divisor: int) -> float | int:
    return size if divisor == 1 else round(size / divisor, 2)


def _word(key: str) -> str:
    return str(key.value) if isinstance(key, Enum) else key
