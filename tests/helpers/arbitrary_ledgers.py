"""Arbitrary valid ledgers for hypothesis, made the only way there is: through a builder.

A recording is a list of actions; each picks what it acts on by number, modulo what there is, so that every list means something and
shrinks well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from memfit.ledger import Category, Ledger, LedgerBuilder, Phase, RunInfo, Work, WorkKind

DEVICES = ("cpu", "cuda:0", "cuda:1")
_FACTS = ("gpu", "clock", "mesh", "stands for ranks")


@dataclass(frozen=True)
class Action:
    name: str
    pick: int
    size: int
    text: str


actions = st.builds(
    Action,
    name=st.sampled_from(
        (
            "alloc",
            "alloc",
            "alloc",
            "alloc_before",
            "free",
            "free",
            "resize",
            "move",
            "empty_cache",
            "enter",
            "enter",
            "exit",
            "step",
            "role",
            "module",
            "work",
        )
    ),
    pick=st.integers(0, 2**16),
    size=st.integers(0, 4096) | st.integers(0, 2**40),
    text=st.sampled_from(("a", "b.0", "b.1")) | st.text(max_size=8),
)
recordings = st.lists(actions, max_size=60)
infos = st.builds(
    RunInfo,
    source=st.sampled_from(("measured", "predicted")),
    # Facts that have fields of their own stand among the versions in files, under these names.
    versions=st.dictionaries(st.text(max_size=5).filter(lambda name: name not in _FACTS), st.text(max_size=5), max_size=3),
    rank=st.integers(0, 1023),
    world_size=st.integers(1, 1024),
    problem=st.text(max_size=10),
    assumptions=st.lists(st.text(max_size=5), max_size=3).map(tuple),
)


class Player:
    """Performs actions on a builder."""

    def __init__(self, builder: LedgerBuilder) -> None:
        self.builder = builder
        self.alive: list[int] = []
        self.open: dict[int, int] = {}
        self.work: list[int] = []
        self.stream_ends: dict[int, int] = {}

    def perform(self, action: Action) -> None:
        getattr(self, f"_{action.name}")(action)

    def _alloc(self, action: Action) -> None:
        device, op = self._words(action)
        self.alive.append(self.builder.alloc(action.size, device, op, self._scope(action), action.pick % 4))

    def _alloc_before(self, action: Action) -> None:
        self.alive.append(self.builder.alloc_before(action.size, *self._words(action), action.pick % 4))

    def _free(self, action: Action) -> None:
        if self.alive:
            self.builder.free(self.alive.pop(action.pick % len(self.alive)))

    def _resize(self, action: Action) -> None:
        if self.alive:
            self.builder.resize(self.alive[action.pick % len(self.alive)], action.size)

    def _move(self, action: Action) -> None:
        if self.alive:
            self.builder.move(self.alive[action.pick % len(self.alive)], action.pick % 4)

    def _empty_cache(self, action: Action) -> None:
        self.builder.empty_cache(self._words(action)[0])

    def _enter(self, action: Action) -> None:
        parent = self._scope(action)
        scope = self.builder.enter(Phase(action.pick % len(Phase)), self._known_module(action), parent, action.size)
        self.open[scope] = parent

    def _exit(self, action: Action) -> None:
        leaves = sorted(set(self.open) - set(self.open.values()))
        if leaves:
            scope = leaves[action.pick % len(leaves)]
            del self.open[scope]
            self.builder.exit(scope, action.size)

    def _step(self, action: Action) -> None:
        self.builder.step()

    def _role(self, action: Action) -> None:
        if self.builder.num_blocks:
            block, category = action.pick % self.builder.num_blocks, Category(action.pick % len(Category))
            self.builder.role(block, category, self._known_module(action), action.text or None)

    def _module(self, action: Action) -> None:
        self.builder.module(action.text, "Linear", self._known_module(action))

    def _work(self, action: Action) -> None:
        """A stream does something, after what it did before and a pause."""
        stream = action.pick % 5 - 2
        begin = self.stream_ends.get(stream, 0) + action.pick % 7
        end = self.stream_ends[stream] = begin + action.size % 5_000
        op, module = self.builder.string(action.text), self._known_module(action)
        kind = action.pick % len(WorkKind)
        self.work += (stream, op if stream < 0 else -1, kind, module, op, begin, end, (end - begin) * (action.pick % 3) // 2, 1)

    def _words(self, action: Action) -> tuple[int, int]:
        return self.builder.device(DEVICES[action.pick % len(DEVICES)]), self.builder.string(action.text)

    def _scope(self, action: Action) -> int:
        choices = [-1, *self.open]
        return choices[action.pick % len(choices)]

    def _known_module(self, action: Action) -> int:
        return action.pick % (self.builder.num_modules + 1) - 1


def play(recording: list[Action], info: RunInfo | None = None) -> Ledger:
    player = Player(LedgerBuilder(info))
    for action in recording:
        player.perform(action)
    return replace(player.builder.build(), work=Work.from_rows(player.work))


ledgers = st.builds(play, recordings, infos)
