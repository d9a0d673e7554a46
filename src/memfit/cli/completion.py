"""Completion for shells: what can be typed, as the parser has it, written as a script of each shell.

The script is plain words: completing a word starts no Python, and a file that is written once is enough until memfit is updated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from memfit.choices import AXES
from memfit.cli.parser import TopParser
from memfit.hardware import gpus
from memfit.models import MODELS

GRIDS: Final = ("compare", "plan")
"""Commands whose flags take several values."""
_MOST_HELP: Final = 70


@dataclass(frozen=True, kw_only=True)
class TypedFlag:
    """A flag of a command."""

    names: tuple[str, ...]
    help: str
    takes: str
    """The name of its value; empty if it takes none."""
    values: tuple[str, ...]
    """Those that are known; of others a file may be meant."""
    takes_several: bool
    """True if it takes several values, with commas between."""


@dataclass(frozen=True, kw_only=True)
class TypedCommand:
    """A command and its flags."""

    name: str
    help: str
    flags: tuple[TypedFlag, ...]
    values: tuple[str, ...]
    """Of its argument, where they are known."""


def typed_commands(parser: TopParser) -> tuple[TypedCommand, ...]:
    """All that a parser reads."""
    helps = {action.dest: action.help or "" for action in parser.commands._choices_actions}
    return tuple(_command(name, helps[name], command) for name, command in parser.commands.choices.items())


def _command(name: str, help_: str, parser: argparse.ArgumentParser) -> TypedCommand:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = [
        TypedFlag(
            names=tuple(action.option_strings),
            help=_short(action.help or ""),
            takes="" if action.nargs == 0 else str(action.metavar or action.dest).strip(",."),
            values=_values(action),
            takes_several=name in GRIDS,
        )
        for action in shown
        if action.option_strings
    ]
    arguments = [_values(action) for action in shown if not action.option_strings]
    return TypedCommand(
        name=name, help=_short(help_), flags=tuple(flags), values=next((values for values in arguments if values), ())
    )


def _values(action: argparse.Action) -> tuple[str, ...]:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.dest == "gpu":
        return tuple(gpu.name for gpu in gpus())
    if action.dest == "model":
        return tuple(MODELS)
    axis = AXES.get(action.dest)
    return tuple(axis.choices or ()) if axis is not None else ()


def _short(text: str) -> str:
    """Its first words, as many as fit beside a flag."""
    first = text.replace("%%", "%").partition(";")[0].partition(":")[0]
    return first if len(first) <= _MOST_HELP else first[:_MOST_HELP].rpartition(" ")[0]


# -- scripts -----------------------------------------------------------------------------------------------------------------------


def bash_script(commands: tuple[TypedCommand, ...]) -> str:
    """Values of a flag are completed behind a comma, too."""
    return "\n".join(_bash_lines(commands)) + "\n"


def _bash_lines(commands: tuple[TypedCommand, ...]) -> Iterator[str]:
    yield "_memfit() {"
    yield '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words="" stem=""'
    yield '    case "$COMP_CWORD ${COMP_WORDS[1]} $before" in'
    yield f'        "1 "*) words="{" ".join(command.name for command in commands)}" ;;'
    for command in commands:
        for flag in command.flags:
            if flag.takes:
                patterns = "|".join(f'*" {command.name} {name}"' for name in flag.names)
                yield f'        {patterns}) words="{" ".join(flag.values)}" ;;'
        known = [*command.values, *(name for flag in command.flags for name in flag.names if name.startswith("--"))]
        yield f'        *" {command.name} "*) words="{" ".join(known)}" ;;'
    yield "    esac"
    yield '    [[ "$word" == *,* ]] && stem="${word%,*},"'
    yield '    COMPREPLY=($(compgen -P "$stem" -W "$words" -- "${word##*,}"))'
    yield "}"
    yield "complete -o default -F _memfit memfit"


def zsh_script(commands: tuple[TypedCommand, ...]) -> str:
    return "\n".join(_zsh_lines(commands)) + "\n"


def _zsh_lines(commands: tuple[TypedCommand, ...]) -> Iterator[str]:
    yield "#compdef memfit"
    yield "_memfit() {"
    yield "    local -a commands=("
    yield from (f"        {_quoted(f'{command.name}:{command.help}')}" for command in commands)
    yield "    )"
    yield "    if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield "    shift words; (( CURRENT-- ))"
    yield "    case $words[1] in"
    for command in commands:
        yield f"        {command.name}) _arguments \\"
        for flag in command.flags:
            yield from (f"            {_quoted(_zsh_flag(name, flag))} \\" for name in flag.names)
        argument = f"*:argument:({' '.join(command.values)})" if command.values else "*:file:_files"
        yield f"            {_quoted(argument)} ;;"
    yield "    esac"
    yield "}"
    yield 'if [[ $funcstack[1] == _memfit ]]; then _memfit "$@"; else compdef _memfit memfit; fi'


def _zsh_flag(name: str, flag: TypedFlag) -> str:
    help_ = flag.help.replace("[", "(").replace("]", ")").replace(":", " ")
    known = " ".join(flag.values)
    value = "_files" if not known else f"_values -s , {flag.takes} {known}" if flag.takes_several else f"({known})"
    return f"*{name}[{help_}]" + (f":{flag.takes.replace(':', ' ')}:{value}" if flag.takes else "")


def fish_script(commands: tuple[TypedCommand, ...]) -> str:
    return "\n".join(_fish_lines(commands)) + "\n"


def _fish_lines(commands: tuple[TypedCommand, ...]) -> Iterator[str]:
    for command in commands:
        yield f"complete -c memfit -n __fish_use_subcommand -f -a {command.name} -d {_quoted(command.help)}"
    for command in commands:
        here = f"complete -c memfit -n '__fish_seen_subcommand_from {command.name}'"
        if command.values:
            yield f"{here} -f -a '{' '.join(command.values)}'"
        for flag in command.flags:
            names = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
            value = f" -x -a '{' '.join(flag.values)}'" if flag.values else " -r" if flag.takes else ""
            yield f"{here} {names}{value} -d {_quoted(flag.help)}"


def _quoted(text: str) -> str:
    """As one word of a shell."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"


SCRIPTS: Final[Mapping[str, Callable[[tuple[TypedCommand, ...]], str]]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
"""By the name of the shell."""
