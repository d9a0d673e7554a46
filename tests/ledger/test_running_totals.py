"""Totals that are kept as a run goes on are those of the ledger, whenever and however often somebody asks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from memfit.analysis import trace_total
from memfit.analysis.timeline import breakdowns_at
from memfit.ledger import Category, LedgerBuilder, Phase
from memfit.ledger.running_totals import RunningTotals

ROLES = [Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.INPUT, Category.WORKSPACE]
PHASES = [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.RECOMPUTE, Phase.PRE_FORWARD, Phase.CHECKPOINT]


def in_words(breakdown):
    """Blocks of forward count as activations, whatever becomes of them."""
    found = {}
    for category, size in breakdown.items():
        kept = Category.ACTIVATION if category is Category.FORWARD_TEMPORARY else category
        found[kept] = found.get(kept, 0) + size
    return found


def of_the_ledger(builder, first):
    """What is in use now, and each device at its highest moment from event ``first`` on."""
    ledger = builder.build()
    last = len(ledger.events) - 1
    current, peak = {}, {}
    for number, device in enumerate(ledger.devices):
        highest = trace_total(ledger, number).highest_between(np.array([first]), np.array([last]))
        current[device.name] = in_words(breakdowns_at(ledger, np.array([last]), number)[0])
        peak[device.name] = in_words(breakdowns_at(ledger, highest, number)[0])
    return current, peak


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "before", "free", "resize", "role", "enter", "exit", "ask", "restart"]),
        st.integers(0, 5000),
        st.integers(0, 7),
    ),
    max_size=80,
)


@given(ACTIONS)
@settings(deadline=None, max_examples=150)
def test_they_are_those_of_the_ledger(actions):
    builder = LedgerBuilder()
    devices = [builder.device("cpu"), builder.device("cuda:0")]
    totals, op = RunningTotals(builder), builder.string("op")
    living, scopes, first, num_before = [], [], -1, 0
    for action, size, choice in actions:
        if action == "alloc":
            living.append(builder.alloc(size, devices[choice % 2], op, scopes[-1] if scopes else -1))
        elif action == "before":
            living.append(builder.alloc_before(size, devices[choice % 2], op))
            num_before += 1
        elif action == "free" and living:
            builder.free(living.pop(choice % len(living)))
        elif action == "resize" and living:
            builder.resize(living[choice % len(living)], size)
        elif action == "role" and living:
            builder.role(living[choice % len(living)], ROLES[choice % len(ROLES)])
        elif action == "enter":
            scopes.append(builder.enter(PHASES[choice % len(PHASES)], parent=scopes[-1] if scopes else -1))
        elif action == "exit" and scopes:
            builder.exit(scopes.pop())
        elif action == "ask":
            totals.current()
        elif action == "restart":
            totals.restart_peak()
            first, num_before = len(builder.build().events) - 1, 0
    # Blocks that are found late stand before everything else in the ledger.
    current, peak = of_the_ledger(builder, first + num_before if first >= 0 else -1)
    assert totals.current() == current
    assert {device: sum(sizes.values()) for device, sizes in totals.peak().items()} == {
        device: sum(sizes.values()) for device, sizes in peak.items()
    }
    assert totals.peak() == peak


def test_a_role_that_is_learned_late_counts_from_birth():
    builder = LedgerBuilder()
    device, op = builder.device("cpu"), builder.string("op")
    totals = RunningTotals(builder)
    backward = builder.enter(Phase.BACKWARD)
    block = builder.alloc(100, device, op, backward)
    assert totals.peak() == totals.current() == {"cpu": {Category.BACKWARD_TEMPORARY: 100}}
    builder.role(block, Category.GRADIENT)
    assert totals.peak() == totals.current() == {"cpu": {Category.GRADIENT: 100}}
    builder.free(block)
    assert totals.peak() == {"cpu": {Category.GRADIENT: 100}}
    assert totals.current() == {"cpu": {}}
    totals.restart_peak()
    assert totals.peak() == {"cpu": {}}
