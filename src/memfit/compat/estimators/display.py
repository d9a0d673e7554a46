"""What ``SACEstimator`` prints, in PyTorch's layout."""

from __future__ import annotations

from memfit.compat.estimators.sac_data import SACGreedyOrderMeta, SACStats
from memfit.compat.trackers.display import print_table

_OPERATOR_HEADERS = ["Op Idx", "Op Name", "Runtimes(ms)", "Memory (B)", "View-like", "Random", "Saved Autograd", "In-place"]
_ORDER_HEADERS = [
    *("Op Id(s)", "Op Name(s)", "Discarded Mem (%)", "Discarded Mem (B)", "Recomp time (%)", "Recomp time (ms)"),
    *("MSPS", "Always Stored", "Always Recomputed"),
]


def print_operators(stats: SACStats, tabulate: bool) -> None:
    """One line for each operator of a module."""
    print(f"Total Memory: {sum(stats.memory)} B Total Runtime: {sum(stats.runtimes)} ms Store Random: {stats.force_store_random}")
    parents = dict(stats.inplace_ops)
    rows = [
        [
            *(str(i), name, f"{stats.runtimes[i]:.4f}", str(stats.memory[i]), str(i in stats.view_like_ops)),
            *(str(i in stats.rand_ops), str(i in stats.saved_autograd_ops), str(parents.get(i))),
        ]
        for i, name in enumerate(stats.func_names)
    ]
    _print(rows, _OPERATOR_HEADERS, tabulate)


def print_order(order: SACGreedyOrderMeta, stats: SACStats, tabulate: bool) -> None:
    """One line for each decision, with what all decisions up to it discard and cost."""
    memory, runtime = sum(stats.memory), sum(stats.runtimes)
    discarded, spent, rows = 0, 0.0, []
    always = [({i}, stats.memory[i], stats.runtimes[i], "nan", "False", "True") for i in sorted(order.recomputed_ops)]
    chosen = [(_members(i.op_idx, order), i.memory, i.runtime, f"{i.msps:.2e}", "False", "False") for i in order.msps_meta]
    for operators, size, time, msps, stored, recomputed in always + chosen:
        discarded, spent = discarded + size, spent + time
        shares = (discarded / memory if memory else 0.0, spent / runtime if runtime else 0.0)
        names = {stats.func_names[i] for i in operators}
        row = [str(operators), str(names), f"{shares[0]:.4f}", str(discarded), f"{shares[1]:.4f}", str(spent)]
        rows.append([*row, msps, stored, recomputed])
    for head in sorted(order.stored_ops):  # nothing of it is discarded: it adds to neither sum
        operators = _members(head, order)
        row = [str(operators), str({stats.func_names[i] for i in operators}), "-", str(discarded), "-", str(spent)]
        rows.append([*row, "nan", "True", "False"])
    _print(rows, _ORDER_HEADERS, tabulate)


def _members(head: int, order: SACGreedyOrderMeta) -> set[int]:
    return {head} | order.inplace_op_groups.get(head, set()) | order.random_ops_group.get(head, set())


def _print(rows: list[list[str]], headers: list[str], tabulate: bool) -> None:
    if tabulate:
        print_table(rows, headers)
        return
    widths = [max(len(row[i]) for row in (headers, *rows)) for i in range(len(headers))]
    for row in (headers, *rows):
        print("\t".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)))
