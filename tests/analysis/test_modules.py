from __future__ import annotations

from dataclasses import replace

from memfit.analysis import bytes_by_module, find_peak, gather_module_stats
from memfit.analysis.modules import ModuleStats, group_modules
from memfit.ledger import Category, Ledger, LedgerBuilder
from memfit.testing import ledger

RUN = ledger(
    """
    alloc 100 parameter model.a.w; alloc 30 buffer model.a.stat; alloc 200 parameter model.b.w
    step
    enter forward model taking 8
        enter forward model.a taking 8; alloc 10 x; alloc 50 tmp; free tmp; exit giving 10
        enter forward model.b taking 10; alloc 20 y; exit giving 20
        enter forward model.a taking 16; alloc 4 z; exit giving 4
    exit giving 4
    enter backward
        enter backward model.b; alloc 200 gradient model.b.g; free y; exit
        enter recompute model.a; alloc 70 r; free r; exit
        enter backward model.a; alloc 5 t; free t; free x; free z; exit
    exit
    """
)


def stats(run: Ledger, device: int = 0) -> dict[str, ModuleStats]:
    return {module.path: module for module in gather_module_stats(run, device)}


def test_every_module_is_there_parents_first():
    assert [(module.path, module.kind) for module in gather_module_stats(RUN, 0)] == [
        ("(Module)", "Module"),
        ("model", "Module"),
        ("model.a", "Module"),
        ("model.b", "Module"),
    ]


def test_calls_are_forwards_without_recomputation():
    assert {path: module.calls for path, module in stats(RUN).items()} == {"(Module)": 0, "model": 1, "model.a": 2, "model.b": 1}


def test_parameters_and_buffers_count_for_the_modules_above():
    assert {path: (module.parameter_bytes, module.buffer_bytes) for path, module in stats(RUN).items()} == {
        "(Module)": (300, 30),
        "model": (300, 30),
        "model.a": (100, 30),
        "model.b": (200, 0),
    }


def test_inputs_and_outputs_are_those_of_the_largest_call():
    found = stats(RUN)
    assert [(found[path].input_bytes, found[path].output_bytes) for path in ("model", "model.a", "model.b")] == [
        (8, 4),
        (16, 10),
        (10, 20),
    ]


def test_peaks_are_of_all_memory_in_use_while_the_module_runs():
    assert {path: (module.peak_forward_bytes, module.peak_backward_bytes) for path, module in stats(RUN).items()} == {
        "(Module)": (0, 0),
        "model": (390, 0),
        "model.a": (390, 614),
        "model.b": (360, 564),
    }


def test_the_peak_is_shared_out_to_the_modules():
    peak = find_peak(RUN, 0)
    assert peak.size_bytes == 614
    assert bytes_by_module(RUN, peak.event, 0).tolist() == [0, 0, 100 + 30 + 10 + 4 + 70, 200 + 200, 0]
    found = stats(RUN)
    assert [found[path].own_bytes_at_peak for path in found] == [0, 0, 214, 400]
    assert [found[path].tree_bytes_at_peak for path in found] == [614, 614, 214, 400]


def test_what_no_module_owns_is_the_last_entry():
    assert bytes_by_module(ledger("alloc 5 x; enter forward a; alloc 3 y"), 2, 0).tolist() == [0, 3, 5]


def test_a_shared_parameter_counts_once_and_belongs_to_the_first():
    builder = LedgerBuilder()
    root = builder.module("", "Model")
    modules = [builder.module(path, "Linear", root) for path in ("embedding", "head")]
    block = builder.alloc(64, builder.device("cpu"), builder.string("empty"))
    for module in modules:
        builder.role(block, Category.PARAMETER, module, "weight")
    builder.role(block, Category.SHARDED_PARAMETER, modules[1], "weight")
    found = gather_module_stats(builder.build(), 0)
    assert [module.parameter_bytes for module in found] == [64, 64, 64]
    assert [module.own_bytes_at_peak for module in found] == [0, 64, 0]


def test_shards_count_as_parameters_and_what_is_gathered_does_not():
    run = ledger("alloc 10 sharded-parameter a.w; alloc 80 unsharded-parameter a.whole; enter forward a; exit")
    assert stats(run)["a"].parameter_bytes == 10


def test_a_replaced_parameter_counts_as_what_replaced_it():
    run = ledger("alloc 40 parameter a.full; alloc 20 parameter a.half; free a.full; step; enter forward a; exit; free a.half")
    assert stats(run)["a"].parameter_bytes == 20
    assert stats(run)["(Module)"].parameter_bytes == 0


def test_a_module_that_only_holds_others_counts_what_lives_when_its_parent_is_done():
    run = ledger(
        """
        alloc 8 parameter net.layers.0.w
        enter forward net; enter forward net.layers.0; exit; exit
        free net.layers.0.w
        """
    )
    assert {path: module.parameter_bytes for path, module in stats(run).items()} == {
        "(Module)": 0,
        "net": 8,
        "net.layers": 8,
        "net.layers.0": 8,
    }


def test_modules_are_counted_on_the_device_asked_for():
    run = ledger("alloc 8 parameter a.host; alloc 8 parameter a.gpu on cuda:0; enter forward a; alloc 1 x on cuda:0; exit")
    cpu, cuda = stats(run, 0)["a"], stats(run, 1)["a"]
    assert (cpu.parameter_bytes, cpu.peak_forward_bytes, cpu.own_bytes_at_peak) == (8, 8, 8)
    assert (cuda.parameter_bytes, cuda.peak_forward_bytes, cuda.own_bytes_at_peak) == (512, 1024, 1024)


def test_a_run_cut_short_inside_a_module():
    found = stats(ledger("alloc 8 parameter a.w; enter forward a taking 3; alloc 2 x"))["a"]
    assert (found.calls, found.input_bytes, found.output_bytes, found.peak_forward_bytes, found.parameter_bytes) == (1, 3, 0, 10, 8)


def test_no_modules():
    assert gather_module_stats(ledger("alloc 1 x"), 0) == []


def test_repeated_modules_make_one_group():
    run = ledger(
        """
        alloc 1 parameter layers.0.w; alloc 2 parameter layers.1.w; alloc 4 parameter layers.10.w
        alloc 3 parameter head.0.w; alloc 9 parameter embedding.w
        """
    )
    groups = group_modules(gather_module_stats(run, 0))
    assert [(group.path, group.num_modules, group.bytes_at_peak) for group in groups] == [
        ("embedding", 1, 9),
        ("layers.*", 3, 7),
        ("head.0", 1, 3),
    ]


def test_modules_that_own_nothing_are_in_no_group():
    (module,) = (module for module in gather_module_stats(RUN, 0) if module.path == "model.b")
    assert group_modules([replace(module, own_bytes_at_peak=0)]) == []
