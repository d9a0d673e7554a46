"""What a search found, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from memfit.choices import AXES, Axis
from memfit.job import Cell
from memfit.models import find_model
from memfit.plan import Plan
from memfit.plan.policy import Action, UnitPolicy
from memfit.plan.search import PlanSearch, Point
from memfit.plan.search.candidate import Candidate
from memfit.plan.search.space import sequences_of
from memfit.units import format_bytes
from memfit.views.words.moments import count
from memfit.views.words.recipe import in_words
from memfit.views.words.timing import format_seconds


def title(found: PlanSearch) -> str:
    name = found.subject.name
    if found.subject.model:
        config = find_model(found.subject.model)
        name = f"{config.name}, {config.num_parameters / 1e9:,.2f} billion parameters"
    gpus = f"{found.world_size} {found.gpu}" if found.world_size > 1 else f"one {found.gpu}"
    return f"{name}, on {gpus}"


def first_answer(candidate: Candidate) -> str:
    """What is the most promising before anything is predicted, by what its sizes alone say."""
    words = [in_words(axis, candidate.inputs[axis]) for axis, row in AXES.items() if _is_told(candidate.inputs, axis, row)]
    seconds = format_seconds(candidate.least_seconds * sequences_of(candidate.asked))
    least = f"at least {seconds} a step and {format_bytes(candidate.least_bytes)}"
    return f"by bounds alone, the most promising: {', '.join(words)}; {least}. Predictions follow"


def _is_told(inputs: dict[str, Any], axis: str, row: Axis) -> bool:
    value = inputs.get(axis)
    return axis not in ("engine", "seq") and value not in ("", None, ()) and (row.usual is None or value != row.usual)


def how_it_was_searched(found: PlanSearch) -> str:
    """How many ways there are, and what became of them."""
    if not found.tried and found.by_checkpointing is not None:
        return "Its checkpointing was planned to the budget."
    tried = {id(each.candidate) for each in found.tried}
    said = [f"{count(found.num_candidates, 'configuration')}: {found.num_too_large:,} cannot fit"]
    if found.num_too_slow:
        said.append(f"{found.num_too_slow:,} cannot be faster")
    said.append(f"{len(tried):,} predicted")
    if found.left:
        said.append(f"{len(found.left):,} not looked at")
    return ", ".join(said) + "."


def configuration(cell: Cell, varying: Sequence[str]) -> str:
    """``full_shard, tp 4, selective checkpointing``: what tells it from others, without what is usual."""
    words = [in_words(axis, value) for axis, value in _chosen(cell, varying)]
    return ", ".join(words) or "as it is"


def _chosen(cell: Cell, varying: Sequence[str]) -> Iterator[tuple[str, Any]]:
    for axis in varying:
        value = cell.inputs.get(axis)
        usual = AXES[axis].usual if axis in AXES else None
        if usual is None or value != usual:
            yield axis, value


def whole_configuration(cell: Cell, found: PlanSearch, *, but: str = "") -> str:
    """The same for a cell that stands alone: all that was open, and what the user fixed to something unusual, also where everything
    that was predicted has it; ``but`` is an axis that is told elsewhere."""
    wanted = {axis for axis, row in AXES.items() if row.usual is not None and axis not in ("engine", but)}
    wanted |= {axis for axis in (*found.open_axes, *found.varying) if axis != but}
    return configuration(cell, [axis for axis in dict.fromkeys((*AXES, *cell.inputs)) if axis in wanted and axis in cell.inputs])


def command(cell: Cell) -> str:
    """The flags that predict this configuration again."""
    inputs = cell.inputs
    if "function" in inputs:
        return ""
    words = [f"--model {inputs['model']}" if "model" in inputs else f"--hf {inputs['hf']}"]
    words += [f"--gpu {inputs['gpu']}", f"--world-size {inputs['world_size']}"]
    for name, axis in AXES.items():
        value = inputs.get(name)
        follows = name == "engine" or value in ("", (), []) or (axis.usual is not None and value == axis.usual)
        if not follows:
            said = "x".join(map(str, value)) if isinstance(value, tuple | list) else value
            words.append(f"{axis.flags[0]} {said}")
    return f"memfit predict {' '.join(words)}"


# -- what to do -------------------------------------------------------------------------------------------------------------------


def closing(found: PlanSearch, *, with_command: bool = True) -> Iterator[str]:
    """What to run, how sure that is, and what more memory would buy; or what would fit."""
    if found.by_checkpointing is not None:
        yield from _checkpointed(found, found.by_checkpointing)
    if found.best is None or found.best.figures is None:
        yield from _nothing_fits(found) if found.by_checkpointing is None else ()
        return
    best, figures = found.best, found.best.figures
    memory = f"{format_bytes(figures.smallest_fit)} of {format_bytes(found.capacity)}"
    run = "Run" if found.by_checkpointing is None else "Without the plan, run"
    yield f"{run} {whole_configuration(best, found)}: {_time(best)}, {memory}."
    again = command(best)
    if again and with_command:
        yield f"See it in full: {again}"
    if found.unrefined is not None:
        yield f"Nothing was decided operator by operator: {found.unrefined.value}."
    if found.left and not found.was_stopped:
        yield (
            f"{count(len(found.left), 'configuration')} that may be faster, by {found.gap:.0%} at most, "
            f"{'was' if len(found.left) == 1 else 'were'} not predicted: --predictions {2 * len(found.tried)} looks at more."
        )
    elif not found.left and not found.was_stopped and found.best.inputs.get("model"):
        among = ", of the batches below," if found.batches else ""
        yield f"Nothing else{among} can be faster by more than {found.gap:.0%}."
    if found.batches:
        yield f"Batches that were looked at: {', '.join(f'{size:,}' for size in found.batches)} sequences in a step of all GPUs."
    if found.varied:
        yield f"Allowed to vary although it changes what is trained: {', '.join(found.varied)}."
    for gain in found.gains:
        yield (
            f"With {format_bytes(gain.more_bytes)} more: {whole_configuration(gain.point.cell, found)}, "
            f"{_time(gain.point.cell)}, {gain.faster_by:.0%} faster."
        )
    if found.was_stopped:
        yield f"The search was stopped: this is what was known by then. {count(len(found.left), 'configuration')} may be faster."


def how_to_use(plan: Plan, path: str) -> str:
    """What to do with the file of a plan."""
    beyond = ", ".join(plan.beyond_checkpointing)
    if not beyond and plan.computes_again:
        return f'memfit.apply(model, "{path}") computes again what it says.'
    if not beyond:
        return f'it leaves the model as it is; print(memfit.Plan.load("{path}").code()) writes how to train it.'
    return (
        f'print(memfit.Plan.load("{path}").code()) writes it as torch code. It says more than checkpointing ({beyond}), which '
        "memfit.apply refuses."
    )


def _checkpointed(found: PlanSearch, plan: Plan) -> Iterator[str]:
    """What was decided operator by operator."""
    figures = plan.figures
    time = f"{format_seconds(figures.step_seconds)} a step, " if figures.step_seconds else ""
    memory = f"{format_bytes(figures.smallest_fit_bytes)} of {format_bytes(plan.budget_bytes)}"
    if plan.checkpointing is None:
        yield f"Run it as it is: {time}{memory}."
        return
    again = f", {format_seconds(figures.recompute_seconds)} of it to compute again" if figures.recompute_seconds else ""
    done = "plan.code() writes it as torch code" if plan.beyond_checkpointing else "memfit.apply"
    yield f"Apply the plan ({done}): {time.removesuffix(', ')}{again}, {memory}."
    for group in plan.checkpointing.groups:
        yield _group(group)
    if found.checkpointed is not None and found.checkpointed.is_model:
        way = whole_configuration(Cell(configuration=found.checkpointed), found, but="checkpointing")
        yield f"It is for {way}, with no checkpointing of its own."


def describe_program_plan(plan: Plan) -> str:
    """What a plan for a program does, and what it takes."""
    figures = plan.figures
    time = "" if figures.step_seconds is None else f", {format_seconds(figures.step_seconds)} a step"
    again = f", of which {format_seconds(figures.recompute_seconds)} are computed again" if figures.recompute_seconds else ""
    lines = [f"{format_bytes(figures.smallest_fit_bytes)} of {format_bytes(plan.budget_bytes)} on one {plan.gpu}{time}{again}."]
    if plan.means.alloc_conf:
        lines.append(f"  PYTORCH_CUDA_ALLOC_CONF={plan.means.alloc_conf}: no time, fewer gaps.")
    if plan.means.loss_rows:
        lines.append(
            f"  Cross entropy goes over {plan.means.loss_rows:,} rows of logits at a time, with the same losses bit by bit."
        )
    if plan.checkpointing is None:
        lines.append("  Nothing is computed again.")
    else:
        lines += [f"  {_group(group)}" for group in plan.checkpointing.groups]
        if plan.checkpointing.untouched:
            lines.append(f"  {count(len(plan.checkpointing.untouched), 'module')} as they are.")
    return "\n".join([*lines, *(f"  Assumed: {sentence}" for sentence in plan.assumptions)])


def _group(group: UnitPolicy) -> str:
    """``0 ... 5 (6 modules): computed again; kept are aten.addmm.default (1)``."""
    names = group.units[0] if len(group.units) == 1 else f"{group.units[0]} ... {group.units[-1]} ({len(group.units)} modules)"
    said = [f"{names}: computed again"]
    for action, word in ((Action.KEEP, "kept"), (Action.OFFLOAD, "offloaded")):
        chosen = Counter(choice.operator for choice in group.choices if choice.action is action)
        if chosen:
            said.append(f"{word} are {', '.join(f'{operator} ({calls})' for operator, calls in chosen.items())}")
    return "; ".join(said) + "."


def _time(cell: Cell) -> str:
    assert cell.figures is not None
    said = f"{format_seconds(cell.figures.step_seconds)} a step"
    return f"{said}, {cell.figures.tokens_per_second:,.0f} tokens a second on each GPU" if cell.figures.tokens_per_second else said


def _nothing_fits(found: PlanSearch) -> Iterator[str]:
    yield f"Nothing {'fits so far' if found.was_stopped else 'fits'} in {format_bytes(found.room)} of a {found.gpu}."
    what = found.infeasible
    if what is None:
        return
    if what.least_state_bytes > found.room:
        yield f"Weights and optimizer state alone take {format_bytes(what.least_state_bytes)} on each GPU."
    if what.closest is not None and what.closest.figures is not None:
        figures = what.closest.figures
        label, size = next(iter(figures.breakdown.items()), ("nothing", 0))
        when = f" ({figures.peak_phase})" if figures.peak_phase else ""
        yield (
            f"The least is {format_bytes(figures.smallest_fit)}: {whole_configuration(what.closest, found)}. At its peak{when}, "
            f"{label} takes {format_bytes(size)}."
        )
        if figures.least_gpu and figures.least_gpu == found.gpu:
            yield f"It would fit on a {found.gpu} with all of its memory: with a larger --budget, or a smaller --margin."
        elif figures.least_gpu:
            yield f"It would fit on {figures.least_gpu}."
    if what.on_more_gpus is not None:
        yield f"{what.world_size} GPUs would do: {whole_configuration(what.on_more_gpus, found)}."


def failures(found: PlanSearch) -> list[str]:
    """Each reason once, and how many configurations had it."""
    reasons: dict[str, int] = {}
    for each in found.tried:
        if each.cell.figures is None:
            reasons[each.cell.error] = reasons.get(each.cell.error, 0) + 1
    return [f"{count(number, 'configuration')} could not be predicted: {reason}" for reason, number in reasons.items()]


def state_of(point: Point, found: PlanSearch) -> str:
    """Whether a point of the frontier is the answer, fits, or is too large."""
    if found.best is point.cell:
        is_fastest = all(other.seconds >= point.seconds for other in found.frontier if other.fits)
        return "the fastest that fits" if is_fastest else "as fast, and simpler to run"
    return "fits" if point.fits else f"{format_bytes(max(0, point.needed - found.room))} too large"
