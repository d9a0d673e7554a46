"""Compiled code in the phantom world: torch's own compiler decides what is saved, fused and reused."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from helpers.compiled_training import Model, training
from helpers.phantom_worlds import phantom
from torch import nn

import memfit
from memfit.ledger import WorkKind
from memfit.phantom.compile import compiler
from memfit.phantom.compile.wrapper import _reinterpret_tensor
from memfit.torch_compat.dynamo import runs_frames_itself
from memfit.torch_compat.versions import NEWEST, OLDEST, installed_torch
from memfit.torch_versions import TorchVersion

NUM_ELEMENTS = 1 << 20
BYTES = 4 * NUM_ELEMENTS


def chain(x: torch.Tensor) -> torch.Tensor:
    return (x.sin().cos() * 2).exp().sum()


def memory_of(function, x: torch.Tensor) -> tuple[int, int]:
    """What is taken from before a forward to its end, and to the end of its backward."""
    before = torch.cuda.memory_allocated()
    loss = function(x)
    after = torch.cuda.memory_allocated()
    loss.backward()
    del loss
    return after - before, torch.cuda.memory_allocated() - before


def num_graphs() -> int:
    """How many graphs Dynamo has made so far in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def test_the_compiler_decides_what_is_saved():
    taken = {}

    def build():
        x = torch.randn(NUM_ELEMENTS, device="cuda", requires_grad=True)
        compiled = torch.compile(chain)

        def step() -> None:
            taken["compiled"] = memory_of(compiled, x)
            x.grad = None
            taken["eager"] = memory_of(chain, x)
            x.grad = None

        return step

    prediction = memfit.predict(build, steps=1)
    # Compiled, backward computes everything anew from x; eager code saves two results of operators.
    forward, backward = taken["compiled"]
    assert forward < BYTES // 100
    assert backward == BYTES
    assert taken["eager"][0] >= 2 * BYTES
    assert not [sentence for sentence in prediction.assumptions if "compile" in sentence]


def test_a_plan_of_another_torch_is_named():
    def build():
        x = torch.randn(NUM_ELEMENTS, device="cuda", requires_grad=True)
        compiled = torch.compile(chain)
        return lambda: compiled(x).backward()

    def named(predicted: tuple[int, int]) -> list[str]:
        prediction = memfit.predict(build, steps=1, torch_version=str(TorchVersion(predicted)))
        return [sentence for sentence in prediction.assumptions if "Inductor" in sentence]

    installed = installed_torch()
    [sentence] = named(OLDEST if installed == NEWEST else NEWEST)
    assert f"installed torch {TorchVersion(installed)}" in sentence
    assert not named(installed)


def test_blocks_are_compiled_once_and_named():
    def compile_blocks(model: Model) -> None:
        for layer in model.layers:
            layer.compile(fullgraph=True)

    before = num_graphs()
    prediction = memfit.predict(training(compile_blocks), steps=2)
    assert num_graphs() == before + 2  # the first block's input needs no gradient, those of the others do
    eager = memfit.predict(training(lambda model: None), steps=2)
    assert prediction.steps[1].peak_allocated < eager.steps[1].peak_allocated
    assert prediction.steps[1].peak_allocated == memfit.predict(training(compile_blocks), steps=2).steps[1].peak_allocated
    work = prediction.ledger.work
    fused = {
        (WorkKind(kind), prediction.ledger.module_path(module))
        for kind, module, op in zip(work.kind.tolist(), work.module.tolist(), work.op.tolist(), strict=True)
        if prediction.ledger.strings[op].startswith("triton_")
    }
    assert {kind for kind, _ in fused} <= {WorkKind.FORWARD, WorkKind.BACKWARD}
    assert {module for _, module in fused} <= {"layers.0", "layers.1", "layers.2", "layers.3"}
    assert fused
    ledger = prediction.ledger
    ledger.check()
    places = {
        (ledger.strings[op].partition("_fused")[0], ledger.strings[ledger.modules.path[ledger.scopes.module[scope]]])
        for op, scope in zip(ledger.blocks.op, ledger.blocks.scope, strict=True)
        if scope >= 0 and ledger.scopes.module[scope] >= 0
    }
    assert {("addmm", "layers.0.up"), ("addmm", "layers.1.up")} <= places
    assert any(kernel.startswith("triton") and module == "layers.1.norm" for kernel, module in places)


def test_what_breaks_a_graph_runs_between_the_parts():
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin().cos()
        torch._dynamo.graph_break()
        return (y.sin() * 2).sum()

    taken = {}

    def build():
        x = torch.randn(NUM_ELEMENTS, device="cuda", requires_grad=True)
        compiled, whole = torch.compile(broken), torch.compile(lambda x: broken(x) + 1, fullgraph=True)

        def step() -> None:
            taken["broken"] = memory_of(compiled, x)
            with pytest.raises(torch._dynamo.exc.Unsupported):
                whole(x)

        return step

    memfit.predict(build, steps=1)
    assert BYTES <= taken["broken"][0] < BYTES + 4096  # what the first part gives to the second


def test_a_backend_that_fails_is_named():
    def fail(graph, examples):
        raise RuntimeError("no such instruction")

    prediction = memfit.predict(training(lambda model: torch.compile(model, backend=fail)), steps=1)
    assert any("no such instruction" in sentence and "eager" in sentence for sentence in prediction.assumptions)


def test_a_backend_of_ones_own_and_other_backends():
    graphs = []

    def own(graph, examples):
        graphs.append(graph)
        return graph.forward

    eager = memfit.predict(training(lambda model: None), steps=1)
    for backend in (own, "eager"):
        prediction = memfit.predict(training(lambda model, backend=backend: torch.compile(model, backend=backend)), steps=1)
        assert prediction.peak_allocated == eager.peak_allocated
    assert graphs


@pytest.mark.parametrize("unit", ["model", "blocks"])
def test_cuda_graphs_take_nothing_when_they_are_replayed(unit: str):
    """Blocks share one compiled function, and each has a graph of its own."""

    def prepare(model: Model) -> None:
        for part in model.layers if unit == "blocks" else [model]:
            part.compile(mode="reduce-overhead")

    prediction = memfit.predict(training(prepare), steps=4)
    first, second, third, fourth = (step.peak_allocated for step in prediction.steps)
    assert third == fourth < min(first, second)
    streams = set(prediction.ledger.blocks.stream.tolist())
    assert len(streams) == 2  # the pool's own, and the default one
    without = memfit.predict(training(lambda model: model.compile()), steps=2)
    assert prediction.time_breakdown is not None
    assert without.time_breakdown is not None
    assert prediction.time_breakdown.compute == pytest.approx(without.time_breakdown.compute, rel=0.05)
    assert prediction.time_breakdown.host < without.time_breakdown.host


def test_sizes_that_change_are_compiled_for_any():
    taken, num_compiled = [], []

    def build():
        compiled = torch.compile(chain)

        def step() -> None:
            for rows in (1000, 2000, 3000, 4000):
                x = torch.randn(rows, 1024, device="cuda", requires_grad=True)
                taken.append(memory_of(compiled, x)[1])
                num_compiled.append(num_graphs())

        return step

    memfit.predict(build, steps=1)
    assert taken == [4 * 1024 * rows for rows in (1000, 2000, 3000, 4000)]
    assert num_compiled[1] == num_compiled[2] == num_compiled[3]


def test_a_model_is_exported_for_any_batch():
    with phantom():
        model, batch = nn.Linear(4, 2).cuda(), torch.export.Dim("batch", min=2, max=64)
        exported = torch.export.export(model, (torch.randn(4, 4, device="cuda"),), dynamic_shapes=({0: batch},))
        assert exported.module()(torch.randn(5, 4, device="cuda")).shape == (5, 2)


def test_a_compiled_optimizer_has_its_state():
    def build():
        model = nn.Linear(512, 512, bias=False).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        update = torch.compile(lambda: optimizer.step())
        x = torch.randn(16, 512, device="cuda")

        def step() -> None:
            model(x).sum().backward()
            update()
            optimizer.zero_grad()

        return step

    prediction = memfit.predict(build, steps=2)
    from memfit.ledger import Category

    assert prediction.breakdown[Category.OPTIMIZER_STATE] >= 2 * 512 * 512 * 4


def test_predictions_know_nothing_of_each_other():
    """Sizes that an earlier prediction has seen do not make a graph dynamic, and an error leaves Python's frames to Python."""
    seen = []

    def look(graph, examples):
        seen.append([size for value in examples if isinstance(value, torch.Tensor) for size in value.shape])
        return graph.forward

    def fails(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x.sin()

    def build(rows: int):
        x = torch.randn(rows, 64, device="cuda")
        compiled, whole = torch.compile(chain, backend=look), torch.compile(fails, backend=look, fullgraph=True)

        def step() -> None:
            compiled(x)
            with pytest.raises(torch._dynamo.exc.Unsupported):
                whole(x)
            assert not runs_frames_itself()  # as without memfit

        return step

    names = set(globals())
    for rows in (4, 8, 16):
        memfit.predict(lambda rows=rows: build(rows), steps=1)
        assert runs_frames_itself()
    assert seen == [[4, 64], [8, 64], [16, 64]]
    assert set(globals()) == names


def test_nothing_is_left_behind():
    def outside(x: torch.Tensor) -> torch.Tensor:
        return chain(x) + 1

    before = torch.compile(outside, backend="eager")
    expected = before(torch.ones(8))
    memfit.predict(training(torch.compile), steps=1)
    with phantom():
        assert torch.compile(outside)(torch.ones(8, device="cuda")).is_cuda
    assert torch.equal(before(torch.ones(8)), expected)
    assert torch.equal(torch.compile(chain, backend="eager")(torch.ones(8)), chain(torch.ones(8)))
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    assert len(_debug_get_cache_entry_list(Model.forward.__code__)) == 0
    gc.collect()


def test_memory_that_a_graph_uses_again_is_no_change_of_the_tensor_that_was_there():
    """Selective checkpointing refuses a tensor that was changed since it was kept. In a compiled ring attention, Inductor lets a
    product write where an output of attention was: an H200 with torch 2.11 trains on."""
    with phantom():
        kept = torch.empty(4, device="cuda")
        again = _reinterpret_tensor(kept, (2, 2), (2, 1))
        torch.mm(torch.empty(2, 2, device="cuda"), torch.empty(2, 2, device="cuda"), out=again)
        assert (kept._version, again._version) == (0, 1)
        assert again.untyped_storage()._cdata == kept.untyped_storage()._cdata


def test_what_is_not_compiled_says_so_where_it_is():
    import memfit.predict.api

    folders = {"engines", "ledger", "predict", "record", "timing", "torch_compat"}
    folders |= {f"phantom/{name}" for name in ("clock", "compile", "device", "distributed", "kernels", "tensors", "values")}
    root = Path(memfit.__file__).parent
    assert {Path(path) for path in compiler._our_paths()} == {root / name for name in (*folders, "phantom/torch_cuda/autocast.py")}
