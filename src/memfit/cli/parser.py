"""What reads a command line: examples in every help, commands in groups, and a suggestion where a word was misspelt."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

_MISUSED = 2
_INDENT = 2
_HELP_COLUMN = 14
_FEW = 2


class CommandParser(argparse.ArgumentParser):
    """Of one command. ``examples`` are command lines, each with what it does."""

    def __init__(self, *args: Any, examples: Sequence[tuple[str, str]] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_help(self) -> str:
        lines = [f"  {command}\n      {what}\n" for command, what in self.examples]
        return super().format_help() + ("\nexamples:\n" + "".join(lines) if lines else "")

    def error(self, message: str) -> NoReturn:
        self.exit(_MISUSED, f"{self.prog}: error: {message}\n{self.prog} --help shows what there is\n")

    def refuse(self, words: Sequence[str], others: Mapping[str, CommandParser]) -> NoReturn:
        """Arguments that the command does not have; ``others`` are all commands by name, one of which may have them."""
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        advice = "".join(suggest(flag, self._option_string_actions) or _where_it_is(flag, others) for flag in flags)
        self.error(f"unrecognized arguments: {' '.join(words)}{advice}")


class TopParser(CommandParser):
    """Of all commands, which its help has in groups."""

    def __init__(self, *args: Any, groups: Mapping[str, Sequence[str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.groups = groups
        self.commands = self.add_subparsers(
            dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS, parser_class=CommandParser, prog=self.prog
        )

    def format_help(self) -> str:
        helps = {action.dest: action.help or "" for action in self.commands._choices_actions}
        blocks = ["\n".join(_group(title, names, helps)) for title, names in self.groups.items()]
        head, _, tail = super().format_help().partition("\noptions:")
        return f"{head}\n" + "\n\n".join(blocks) + f"\n\noptions:{tail}"


def _group(title: str, names: Iterable[str], helps: Mapping[str, str]) -> Iterator[str]:
    yield f"{title}:"
    for name in names:
        if name in helps:
            yield f"{' ' * _INDENT}{name:<{_HELP_COLUMN - _INDENT}}{helps[name]}"


def _where_it_is(flag: str, commands: Mapping[str, CommandParser]) -> str:
    """``; memfit plan has --budget``, or nothing where no command has such a flag, or so many have it that it says little."""
    having = [f"memfit {name}" for name, command in commands.items() if flag in command._option_string_actions]
    if not 0 < len(having) <= _FEW:
        return ""
    return f"; {' and '.join(having)} {'has' if len(having) == 1 else 'have'} {flag}"


def suggest(word: str, known: Iterable[str]) -> str:
    """``; did you mean --model?``, or nothing where no known word is close."""
    close = difflib.get_close_matches(word, [*known], n=2, cutoff=0.7)
    return f"; did you mean {' or '.join(close)}?" if close else ""
