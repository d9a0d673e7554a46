"""A plan changes what is kept, and nothing of what is computed: losses and gradients are equal bit by bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import memfit
from memfit.errors import ConfigError, UnknownUnitError
from memfit.ledger import Phase
from memfit.plan import Action, CheckpointingPolicy, OperatorChoice, Plan, PlanCost, UnitPolicy
from memfit.plan.applying import undo
from memfit.plan.plan_file import PlannedModel
from memfit.views.words.plan import how_to_use

DIM = 16
ADDMM, GELU = "aten.addmm.default", "aten.gelu.default"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(DIM), nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.dropout(self.down(F.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return x.square().mean()


def chosen(*calls: tuple[str, int, Action]) -> tuple[OperatorChoice, ...]:
    return tuple(OperatorChoice(operator=operator, call=call, action=action) for operator, call, action in calls)


def policy(*choices: tuple[str, int, Action]) -> CheckpointingPolicy:
    """Two layers with choices, one that is computed again as a whole, one that is left as it is."""
    groups = (UnitPolicy(units=("layers.0", "layers.1"), choices=chosen(*choices)), UnitPolicy(units=("layers.2",)))
    return CheckpointingPolicy(groups=groups, untouched=("layers.3",))


KEEP, OFFLOAD = Action.KEEP, Action.OFFLOAD
POLICIES = {
    "products": policy((ADDMM, 0, KEEP), (ADDMM, 1, KEEP)),
    "the second product": policy((ADDMM, 1, KEEP)),
    "offloaded": policy((ADDMM, 0, OFFLOAD), (GELU, 0, KEEP)),
    "nothing": policy(),
}
NEVER_RUN = policy(("aten.mm.default", 0, KEEP), (ADDMM, 7, KEEP))


def train(prepare: Callable[[nn.Module], Any], steps: int = 3, microbatches: int = 1) -> tuple[list[float], list[torch.Tensor]]:
    torch.manual_seed(0)
    model = Model()
    prepared = prepare(model)
    model = model if prepared is None else prepared
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        outputs = [model(torch.randn(3, DIM)) for _ in range(microbatches)]
        for loss in outputs:
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
    return losses, [parameter.grad.clone() for parameter in model.parameters()]


def assert_equal(found: Any, expected: Any) -> None:
    assert found[0] == expected[0]
    assert all(torch.equal(one, other) for one, other in zip(found[1], expected[1], strict=True))


@pytest.mark.parametrize("name", POLICIES)
def test_training_is_the_same_bit_by_bit_with_dropout(name: str):
    assert_equal(train(lambda model: memfit.apply(model, POLICIES[name])), train(lambda model: None))


def test_several_forwards_may_wait_for_their_backward():
    expected = train(lambda model: None, microbatches=3)
    assert_equal(train(lambda model: memfit.apply(model, POLICIES["products"]), microbatches=3), expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own look
@pytest.mark.parametrize("way", ["blocks before", "blocks after", "model"])
def test_compiled_training_is_the_same(way: str):
    def prepare(model: nn.Module) -> Any:
        if way == "blocks before":
            compile_blocks(model)
        memfit.apply(model, POLICIES["products"])
        if way == "blocks after":
            compile_blocks(model)
        return torch.compile(model, backend="aot_eager") if way == "model" else model

    assert_equal(train(prepare, steps=2), train(lambda model: None, steps=2))


def compile_blocks(model: nn.Module) -> None:
    for layer in model.layers:
        layer.compile(backend="aot_eager")


class Counting(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts products."""

    def __init__(self) -> None:
        super().__init__()
        self.num_products = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_products += func is torch.ops.aten.addmm.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "num_again"),
    # Of two layers with choices and one without: torch stops before the last product of a layer, which no backward needs.
    [("products", 0 + 1), ("the second product", 2 + 1), ("nothing", 2 + 1)],
)
def test_what_is_kept_is_not_computed_again(name: str, num_again: int):
    torch.manual_seed(0)
    model = memfit.apply(Model().eval(), POLICIES[name])
    loss = model(torch.randn(3, DIM))
    with Counting() as counting:
        loss.backward()
    assert counting.num_products == num_again


def test_names_state_dicts_and_classes_stay_as_they_are():
    plain, planned = Model(), memfit.apply(Model(), POLICIES["products"])
    assert list(planned.state_dict()) == list(plain.state_dict())
    assert [type(module) for module in planned.modules()] == [type(module) for module in plain.modules()]


def test_a_copy_of_the_model_uses_its_own_weights():
    model = memfit.apply(Model().eval(), POLICIES["products"])
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    x = torch.ones(2, DIM)
    assert twin(x).item() == 1.0
    assert model(x).item() != 1.0


def test_without_gradients_nothing_is_kept():
    model = memfit.apply(Model().eval(), POLICIES["products"])
    with torch.no_grad():
        assert torch.equal(model(torch.ones(2, DIM)), undo(model)(torch.ones(2, DIM)))


def test_a_second_plan_is_refused_until_the_first_is_undone():
    model = memfit.apply(Model(), POLICIES["products"])
    with pytest.raises(ConfigError, match="a plan is applied to this model already"):
        memfit.apply(model, POLICIES["nothing"])
    assert_equal(
        train(lambda model: memfit.apply(undo(memfit.apply(model, POLICIES["nothing"])), POLICIES["products"])), train(undo)
    )


def test_undone_is_as_it_was():
    model = Model()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    undo(memfit.apply(model, POLICIES["products"]))
    assert {name: set(vars(module)) for name, module in model.named_modules()} == before


def test_a_unit_that_is_not_there_is_named():
    wrong = CheckpointingPolicy(groups=(UnitPolicy(units=("layers.0", "layers.9")),))
    with pytest.raises(UnknownUnitError, match=r"no module layers\.9; it has layers, layers\.0") as raised:
        memfit.apply(Model(), wrong)
    assert raised.value.units == ("layers.9",)


def test_a_plan_may_be_a_file(tmp_path: Path):
    figures = PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=1, smallest_fit_bytes=1)
    plan = Plan(gpu="H200", budget_bytes=1, checkpointing=POLICIES["products"], figures=figures)
    plan.save(tmp_path / "plan.json")
    expected = train(lambda model: None)
    assert_equal(train(lambda model: memfit.apply(model, tmp_path / "plan.json")), expected)
    assert_equal(train(plan.apply_to), expected)
    with pytest.raises(ConfigError, match="takes a plan, its file or a policy, not int"):
        memfit.apply(Model(), 7)  # type: ignore[arg-type]


def test_backward_twice_is_told():
    model = memfit.apply(Model(), POLICIES["products"])
    loss = model(torch.randn(2, DIM))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="without retain_graph=True"):
        loss.backward()


class Spoiled(Block):
    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.down(F.relu_(self.up(self.norm(x))))


def test_a_kept_output_that_is_changed_is_told_not_used():
    model = Model()
    model.layers[0] = Spoiled()
    memfit.apply(model, POLICIES["products"])
    with pytest.raises(RuntimeError, match="was changed in place after its operator ran"):
        model(torch.randn(2, DIM)).backward()


def test_a_chain_in_place_that_is_kept_as_a_whole_is_the_same():
    def prepare(model: nn.Module) -> nn.Module:
        torch.manual_seed(1)
        for place in (0, 1):
            model.layers[place] = Spoiled()
        return model

    kept = policy((ADDMM, 0, KEEP), ("aten.relu_.default", 0, KEEP))
    assert_equal(train(lambda model: memfit.apply(prepare(model), kept)), train(prepare))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(DIM), nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.linear(torch.tanh(self.norm(x)))


@pytest.mark.parametrize(
    "again",
    [
        policy(("aten.native_batch_norm.default", 0, KEEP), ("aten.add_.Tensor", 0, KEEP)),
        policy(("aten.tanh.default", 0, KEEP)),
        policy(),
    ],
    ids=["kept", "computed again", "computed again as a whole"],
)
def test_statistics_of_a_batch_norm_are_counted_once(again: CheckpointingPolicy):
    def prepare(model: nn.Module) -> nn.Module:
        torch.manual_seed(1)
        model.layers[0] = Normed()
        return model

    models: list[nn.Module] = []
    found = train(lambda model: models.append(model) or memfit.apply(prepare(model), again))
    assert_equal(found, train(lambda model: models.append(model) or prepare(model)))
    ours, plain = (model.layers[0].norm for model in models)
    assert ours.num_batches_tracked == plain.num_batches_tracked == 3
    assert torch.equal(ours.running_mean, plain.running_mean)
    assert torch.equal(ours.running_var, plain.running_var)


def test_statistics_of_a_compiled_batch_norm_are_counted_once():
    torch.manual_seed(1)
    ours = Normed()
    plain = copy.deepcopy(ours)
    model = nn.Sequential(ours)
    ours.compile(backend="aot_eager")
    memfit.apply(model, CheckpointingPolicy(groups=(UnitPolicy(units=("0",)),)))
    batch = torch.randn(3, DIM)
    model(batch).sum().backward()
    plain(batch).sum().backward()
    assert ours.norm.num_batches_tracked == 1
    assert torch.equal(ours.norm.running_mean, plain.norm.running_mean)


def test_a_batch_norm_in_evaluation_reads_its_statistics_when_it_is_computed_again():
    def prepare(model: nn.Module) -> nn.Module:
        torch.manual_seed(1)
        model.layers[0] = Normed()
        model.layers[0].norm.running_mean.fill_(0.3)
        model.layers[0].norm.eval()
        return model

    assert_equal(train(lambda model: memfit.apply(prepare(model), policy())), train(prepare))


def test_applying_needs_no_solver():
    code = (
        "import sys; sys.modules['scipy'] = None\n"
        "import torch, memfit\nfrom memfit.plan import CheckpointingPolicy, UnitPolicy\n"
        "policy = CheckpointingPolicy(groups=(UnitPolicy(units=('0',)),))\n"
        "model = memfit.apply(torch.nn.Sequential(torch.nn.Linear(2, 2)), policy)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_tracker_sees_what_is_computed_again_as_the_unit_s():
    model = memfit.apply(Model(), POLICIES["nothing"])
    with memfit.track(model) as tracker:
        model(torch.randn(3, DIM)).backward()
    ledger = tracker.ledger
    modules = ledger.scopes.module[ledger.scopes.phase == Phase.RECOMPUTE].tolist()
    again = [ledger.module_path(module) for module in modules]
    assert [name for name in again if name.count(".") == 1] == ["layers.2", "layers.1", "layers.0"]


# -- plans that a search found -----------------------------------------------------------------------------------------------------


def searched(**recipe: Any) -> Plan:
    cost = PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=1, smallest_fit_bytes=1)
    recipe = {"model": "gpt2", "strategy": "", "compile": "none", "precision": "bf16-mixed", "checkpointing": "none"} | recipe
    return Plan(gpu="H200", budget_bytes=2**30, recipe=recipe, figures=cost)


@pytest.mark.parametrize(("word", "num_again"), [("full", 4), ("selective", 0), ("none", 0)])
def test_the_checkpointing_of_a_searched_plan_is_applied(word: str, num_again: int):
    torch.manual_seed(0)
    model = memfit.apply(Model().eval(), searched(checkpointing=word))
    loss = model(torch.randn(3, DIM))
    with Counting() as counting:
        loss.backward()
    assert counting.num_products == num_again  # torch stops before the last product of a layer
    assert_equal(train(lambda model: memfit.apply(model, searched(checkpointing=word))), train(lambda model: None))
    undo(model)
    assert "forward" not in model.layers[0].__dict__


@pytest.mark.parametrize(
    "words",
    [
        {"strategy": "shard_grad_op"},
        {"compile": "blocks"},
        {"tp": 2},
        {"precision": "bf16"},
        {"float8": "rowwise"},
        {"microbatches": 2},
    ],
    ids=str,
)
def test_what_cannot_be_applied_is_refused_with_the_way_to_do_it(words: dict[str, Any], tmp_path: Path):
    plan, model, (word,) = searched(checkpointing="full", **words), Model(), words
    plan.save(tmp_path / "plan.json")
    with pytest.raises(ConfigError, match=rf"does more than memfit.apply can do.* {word}=.*plan.code\(\)"):
        memfit.apply(model, tmp_path / "plan.json")
    assert "forward" not in model.layers[0].__dict__
    assert "forward" in plan.apply_to(model).layers[0].__dict__
    said = how_to_use(plan, "plan.json")
    assert said.startswith('print(memfit.Plan.load("plan.json").code()) writes it as torch code')


def test_what_can_be_applied_is_said_so():
    said = how_to_use(searched(checkpointing="full"), "plan.json")
    assert said == 'memfit.apply(model, "plan.json") computes again what it says.'
    assert how_to_use(searched(batch=12), "plan.json").startswith("it leaves the model as it is; ")


def test_a_searched_plan_for_another_model_is_refused():
    with pytest.raises(ConfigError, match="Linear has none: it is a plan for another model"):
        memfit.apply(nn.Linear(2, 2), searched(checkpointing="full"))


@pytest.mark.parametrize("name", POLICIES)
def test_a_model_with_a_plan_is_saved_whole_after_a_step(name: str, tmp_path: Path):
    model = Model()
    memfit.apply(model, POLICIES[name])
    model(torch.ones(2, DIM)).backward()
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    torch.manual_seed(1)
    expected = model(torch.ones(2, DIM))
    torch.manual_seed(1)
    loss = loaded(torch.ones(2, DIM))
    loss.backward()
    assert torch.equal(loss, expected)


def test_a_plan_for_fewer_layers_is_refused():
    class Longer(Model):
        def __init__(self) -> None:
            super().__init__()
            self.layers.extend(Block() for _ in range(2))

    with pytest.raises(ConfigError, match=r"without layers\.4, layers\.5"):
        memfit.apply(Longer(), POLICIES["products"])


def test_a_plan_for_all_layers_of_another_depth_is_refused():
    every = CheckpointingPolicy(groups=(UnitPolicy(units=tuple(f"layers.{number}" for number in range(3))),))
    cost = PlanCost(peak_allocated_bytes=1, peak_reserved_bytes=1, smallest_fit_bytes=1)
    planned = PlannedModel(kind="Model", num_parameters=1, depths={"layers": 3})
    with pytest.raises(ConfigError, match="with 3 modules in layers, and this one has 4 there"):
        memfit.apply(Model(), Plan(gpu="H200", budget_bytes=2**30, checkpointing=every, figures=cost, model=planned))


def test_operators_that_never_run_are_refused_by_name_before_weights_change():
    model = memfit.apply(Model(), NEVER_RUN)
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"aten\.mm\.default \(call 0\), aten\.addmm\.default \(call 7\).*another model"):
            train_once(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    undo(model)
    train_once(model)


@pytest.mark.parametrize("way", ["blocks", "model"])
def test_operators_that_never_run_are_refused_by_name_while_they_are_compiled(way: str):
    torch.compiler.reset()
    model = memfit.apply(Model(), NEVER_RUN)
    before = copy.deepcopy(model.state_dict())
    if way == "blocks":
        compile_blocks(model)
    compiled = torch.compile(model, backend="aot_eager") if way == "model" else model
    with pytest.raises(
        Exception, match=r"ConfigError: .*aten\.mm\.default \(call 0\), aten\.addmm\.default \(call 7\).*another model"
    ):
        train_once(compiled)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler's own look
def test_what_only_training_runs_is_not_missed_in_a_compiled_evaluation():
    torch.compiler.reset()
    model = memfit.apply(Model(), policy(("aten.bernoulli_.float", 0, KEEP)))
    compile_blocks(model)
    model.eval()
    model(torch.ones(2, DIM)).backward()
    with torch.no_grad():
        model.train()(torch.ones(2, DIM))


def test_a_call_that_one_unit_of_several_makes_is_no_reason_to_refuse():
    """As with experts: how often a unit calls an operator depends on its data."""
    model = Model()
    model.layers[1].down = nn.Sequential(model.layers[1].down, nn.Linear(DIM, DIM))
    expected = copy.deepcopy(model)
    memfit.apply(model, policy((ADDMM, 2, KEEP)))
    assert torch.equal(train_once(model), train_once(expected))


def test_what_only_training_runs_is_not_missed_in_evaluation():
    model = memfit.apply(Model(), policy(("aten.bernoulli_.float", 0, KEEP)))
    model.eval()
    model(torch.ones(2, DIM)).backward()
    model.train()
    train_once(model)


def train_once(model: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    loss = model(torch.ones(2, DIM))
    loss.backward()
    optimizer.step()
    return loss.detach()
