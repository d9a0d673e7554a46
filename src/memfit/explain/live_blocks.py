"""What was in use at the failure: by category, by module, by block."""

from __future__ import annotations

from dataclasses import dataclass

from memfit.analysis import Breakdown, breakdown_at, bytes_by_module, largest_blocks_at
from memfit.analysis.modules import starred
from memfit.ledger import Ledger, Moment

NUM_BLOCKS = 12


@dataclass(frozen=True, kw_only=True)
class Holding:
    """What one owner held: modules that differ only in a number, or a place in the code."""

    owner: str
    num_members: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class HeldBlock:
    """One block."""

    size_bytes: int
    category: str
    """Empty where only code is known, of a snapshot."""
    op: str
    owner: str
    """The name of a parameter, the path of a module, or a place in the code."""


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """All that was in use, and what was going on."""

    device: str
    moment: Moment | None
    """When it was, and what ran; ``None`` of a snapshot, which knows neither."""
    place: str
    """The place in the code that asked, of a snapshot: ``train.py:33 in step``."""
    op: str
    """What asked for memory, if that is known."""
    categories: Breakdown
    """Empty of a snapshot, which knows none."""
    owners: tuple[Holding, ...]
    """The largest first; without a name what no module owned."""
    blocks: tuple[HeldBlock, ...]
    """The largest first."""
    unknown_bytes: int = 0
    """In use by what the ledger never saw: libraries' workspaces, tensors from before that it was not told of."""

    @property
    def where(self) -> str:
        """In words: ``step 1, backward of layers.3``; of a snapshot the place in the code that asked."""
        return self.place if self.moment is None else self.moment.label

    @property
    def total_bytes(self) -> int:
        return sum(owner.size_bytes for owner in self.owners) + self.unknown_bytes


def hold(ledger: Ledger, device: int, event: int, op: str, unknown_bytes: int = 0) -> Holdings:
    """What was in use on a device right after an event."""
    return Holdings(
        device=ledger.devices[device].name,
        moment=ledger.moment_at(event),
        place="",
        op=op,
        categories=breakdown_at(ledger, event, device),
        owners=_by_module(ledger, event, device),
        blocks=tuple(
            HeldBlock(size_bytes=life.size_bytes, category=life.category.label, op=life.op, owner=life.name or life.module)
            for life in largest_blocks_at(ledger, event, device, NUM_BLOCKS)
        ),
        unknown_bytes=unknown_bytes,
    )


def _by_module(ledger: Ledger, event: int, device: int) -> tuple[Holding, ...]:
    totals = bytes_by_module(ledger, event, device).tolist()
    members: dict[str, list[tuple[str, int]]] = {}
    for module, size in enumerate(totals[:-1]):
        path = ledger.module_path(module)
        if size:
            members.setdefault(starred(path), []).append((path, size))
    if totals[-1]:
        members[""] = [("", totals[-1])]
    groups = [
        Holding(
            owner=path if len(group) > 1 else group[0][0],
            num_members=len(group),
            size_bytes=sum(size for _, size in group),
        )
        for path, group in members.items()
    ]
    return tuple(sorted(groups, key=lambda group: -group.size_bytes))
