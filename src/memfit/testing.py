"""Ledgers for tests, from a few words.

::

    memfit.testing.ledger("alloc 4MiB parameter layers.0.w; step; enter forward layers.0; alloc 1MiB x; exit; free x")

Statements are separated by semicolons or line ends::

    alloc SIZE [ROLE] NAME [on DEVICE] [stream N]    a block, on ``cpu`` unless said otherwise; NAME stands as its op
    free NAME
    resize NAME SIZE [stream N]                      what is new comes from stream N
    empty-cache [on DEVICE]                          ``torch.cuda.empty_cache()``
    enter PHASE [MODULE] [taking SIZE]               a scope, inside those still open
    exit [giving SIZE]                               leaves the innermost scope; scopes left open are a run cut short
    step                                             a training step begins

``SIZE`` is written as ``memfit.units.parse_bytes`` reads it, without spaces. ``ROLE`` is a category that a recorder learns of a
block, with dashes or underscores (``parameter``, ``optimizer-state``); the other categories follow from when a block is born and
dies, so they are never written. A block with a role and a dotted ``NAME`` belongs to the module before the last dot. ``PHASE`` is
written like ``ROLE`` (``pre-forward``). ``MODULE`` is a dotted path, ``.`` is the root, and the modules above come with it. A
``NAME`` can be used again once its block is freed. Event number i happens after i microseconds, so that times are exact.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import IntEnum
from typing import TypeVar

import numpy as np

from memfit.errors import ConfigError
from memfit.ledger import Ledger, LedgerBuilder, Phase
from memfit.ledger.categories import ROLE_ORDER
from memfit.units import parse_bytes

NS_PER_EVENT = 1_000

_Word = TypeVar("_Word", bound=IntEnum)

_FORMS = {
    "alloc": "alloc SIZE [ROLE] NAME [on DEVICE] [stream N]",
    "free": "free NAME",
    "resize": "resize NAME SIZE [stream N]",
    "empty-cache": "empty-cache [on DEVICE]",
    "enter": "enter PHASE [MODULE] [taking SIZE]",
    "exit": "exit [giving SIZE]",
    "step": "step",
}

_PATTERNS = {
    "alloc": r"alloc (?P<size>\S+)( (?P<role>\S+))? (?P<name>\S+)( on (?P<device>\S+))?( stream (?P<stream>\d{1,18}))?",
    "free": r"free (?P<name>\S+)",
    "resize": r"resize (?P<name>\S+) (?P<size>\S+)( stream (?P<stream>\d{1,18}))?",
    "empty-cache": r"empty-cache( on (?P<device>\S+))?",
    "enter": r"enter (?P<phase>\S+)( (?P<module>\S+))?( taking (?P<taking>\S+))?",
    "exit": r"exit( giving (?P<giving>\S+))?",
    "step": r"step",
}


def ledger(script: str) -> Ledger:
    """The ledger that ``script`` describes; a script that makes no sense raises ``ConfigError`` and names the statement."""
    stage = _Stage()
    statements = (" ".join(statement.split()) for statement in re.split(r"[;\n]", script))
    for number, line in enumerate(filter(None, statements), start=1):
        try:
            stage.perform(line)
        except ConfigError as error:
            raise ConfigError(f"statement {number}, {line!r}: {error}") from None
    return stage.ledger()


class _Stage:
    """Performs statements one by one, and remembers the names in them."""

    def __init__(self) -> None:
        self._builder = LedgerBuilder()
        self._blocks: dict[str, int] = {}
        self._modules: dict[str, int] = {}
        self._open: list[int] = []

    def perform(self, line: str) -> None:
        verb = line.partition(" ")[0]
        if verb not in _FORMS:
            raise ConfigError(f"there is no {verb!r}: write one of " + ", ".join(_FORMS))
        match = re.fullmatch(_PATTERNS[verb], line)
        if match is None:
            raise ConfigError(f"write it as: {_FORMS[verb]}")
        getattr(self, f"_{verb.replace('-', '_')}")(**match.groupdict())

    def ledger(self) -> Ledger:
        built = self._builder.build()
        time_ns = np.arange(len(built.events), dtype=np.int64) * NS_PER_EVENT
        return replace(built, events=replace(built.events, time_ns=time_ns)).check()

    def _alloc(self, size: str, role: str | None, name: str, device: str | None, stream: str | None) -> None:
        if name in self._blocks:
            raise ConfigError(f"{name} is still there: free it first, or take another name")
        category = None if role is None else _word(ROLE_ORDER, role)
        device_number = self._builder.device(device or "cpu")
        self._blocks[name] = self._builder.alloc(
            parse_bytes(size), device_number, self._builder.string(name), self._scope(), int(stream or 0)
        )
        if category is not None:
            path = name.rpartition(".")[0]
            self._builder.role(self._blocks[name], category, self._module(path) if path else -1, name)

    def _free(self, name: str) -> None:
        self._builder.free(self._block(name))
        del self._blocks[name]

    def _resize(self, name: str, size: str, stream: str | None) -> None:
        if stream is not None:
            self._builder.move(self._block(name), int(stream))
        self._builder.resize(self._block(name), parse_bytes(size))

    def _empty_cache(self, device: str | None) -> None:
        self._builder.empty_cache(self._builder.device(device or "cpu"))

    def _enter(self, phase: str, module: str | None, taking: str | None) -> None:
        number = -1 if module is None else self._module("" if module == "." else module)
        size = parse_bytes(taking or 0)
        self._open.append(self._builder.enter(_word(Phase, phase.removeprefix("fsdp-")), number, self._scope(), size))

    def _exit(self, giving: str | None) -> None:
        if not self._open:
            raise ConfigError("no scope is open: enter one first")
        self._builder.exit(self._open.pop(), parse_bytes(giving or 0))

    def _step(self) -> None:
        self._builder.step()

    def _scope(self) -> int:
        return self._open[-1] if self._open else -1

    def _block(self, name: str) -> int:
        if name not in self._blocks:
            raise ConfigError(f"there is no block {name}: alloc it first")
        return self._blocks[name]

    def _module(self, path: str) -> int:
        if path not in self._modules:
            if path and not all(path.split(".")):
                raise ConfigError(f"{path!r} is not a module path: write it like layers.0.attention")
            parent = self._module(path.rpartition(".")[0]) if path else -1
            self._modules[path] = self._builder.module(path, "Module", parent)
        return self._modules[path]


def _word(words: Iterable[_Word], text: str) -> _Word:
    known = {word.name.lower(): word for word in words}
    if text.replace("-", "_") not in known:
        raise ConfigError(f"{text!r} is none of " + ", ".join(known).replace("_", "-"))
    return known[text.replace("-", "_")]
