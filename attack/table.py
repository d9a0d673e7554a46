"""What was tried, and what held."""

from __future__ import annotations

from attack.runner import Result

MOST_TEXT = 3000


def show_table(results: list[Result], seed: int) -> str:
    width = max(len(result.attack.name) for result in results)
    heads = "  ".join(f"{name:>9}" for name in ("cases", "files", "commands", "refused", "errors"))
    lines = [f"{'attack':{width}}  {heads}  {'seconds':>8}  fell  what held"]
    for result in results:
        lines.append(_line(result.attack.name, width, result.cases, result, f"{len(result.fallen):>4}  {result.attack.promise}"))
    files, commands = (sum(getattr(result.tried, name) for result in results) for name in ("files", "commands"))
    num_fallen = sum(len(result.fallen) for result in results)
    lines.append(f"\n{files:,} damaged files and {commands:,} commands: {num_fallen or 'nothing'} fell. Seed {seed}.")
    if idle := [result.attack.name for result in results if not result.cases]:
        lines.append(f"NOT TRIED, so nothing is known of: {', '.join(idle)}")
    for result in results:
        lines += show_falls(result, seed)
    return "\n".join(lines)


def show_falls(result: Result, seed: int) -> list[str]:
    """Each case that fell: how to see it again, and the end of what happened."""
    name = result.attack.name
    return [
        f"\n{name}, case {case} fell; to see it again: python -m attack --only '{name}' --case {case} --seed {seed}\n"
        + what.rstrip()[-MOST_TEXT:]
        for case, what in sorted(result.fallen.items())
    ]


def _line(name: str, width: int, cases: int, result: Result, rest: str) -> str:
    tried = result.tried
    numbers = "  ".join(f"{number:>9,}" for number in (cases, tried.files, tried.commands, tried.refused, tried.errors))
    return f"{name:{width}}  {numbers}  {result.seconds:>8.1f}  {rest}"
