"""``SACEstimator``: PyTorch's surface, exact figures, and none of the faults that its own has.

A fault is shown on PyTorch's class beside what ours says. Its prices need CUDA, so it is given a price of 1 for every operator.
Where an assertion on PyTorch's side fails with "fixed", a new torch no longer has that fault: what is asserted of ours stays true.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import sac_estimator as torchs

from memfit.compat import RuntimeEstimator, SACEstimator, SACStats
from memfit.compat.estimators.curves import policies_of, trade_off
from memfit.errors import ConfigError

MODE = "operator-level-cost-model"
FIXED = f"fixed in torch {torch.__version__}"
F32 = 4


def ours(module: nn.Module, *inputs: torch.Tensor, times: int = 1) -> SACEstimator:
    estimator = SACEstimator()
    for _ in range(times):
        with estimator(MODE):
            module(*inputs)
    return estimator


def theirs(module: nn.Module, *inputs: torch.Tensor, times: int = 1) -> Any:
    estimator = torchs.SACEstimator()
    estimator._estimate_runtime = lambda func, args, kwargs: (func(*args, **(kwargs or {})), 1.0)
    for _ in range(times):
        with FakeTensorMode(allow_non_fake_inputs=True), estimator:
            module(*inputs)
    return estimator


def theirs_fails(module: nn.Module, *inputs: torch.Tensor, times: int = 1) -> bool:
    try:
        theirs(module, *inputs, times=times)
    except Exception:
        return True
    return False


class Inside(nn.Module):
    """A module around a function: it has a child, so estimators look at it."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.child, self.function = nn.Identity(), function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.function(*inputs)


def stats_of(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> SACStats:
    return ours(Inside(function), *inputs).sac_mod_stats["Inside"]


# -- what is recorded ------------------------------------------------------------------------------------------------------------


def test_views_and_work_in_place():
    def forward(x: torch.Tensor) -> torch.Tensor:
        x = torch.relu_(x @ x.t())
        return torch.sin_(torch.cos_(x)) * 2

    found = stats_of(forward, torch.randn(4, 4, requires_grad=True))
    assert found.func_names == ["t", "mm", "relu_", "cos_", "sin_", "mul"]
    assert (found.view_like_ops, found.rand_ops) == ([0], [])
    assert found.inplace_ops == [(2, 1), (3, 1), (4, 1)]
    # cos_ and sin_ need what was there before them: autograd copies it, and the copy is theirs.
    assert found.memory == [0, 64, 0, 64, 64, 64]


def test_bytes_are_those_that_an_operator_allocates():
    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x).view(2, 8)
        return torch.exp(y + 1)

    found = stats_of(forward, torch.randn(4, 4, requires_grad=True))
    assert found.func_names == ["exp", "view", "add", "exp"]
    assert found.memory == [64, 0, 64, 0], "what is returned and kept by autograd is held outside the module"
    assert found.saved_autograd_ops == [0, 1, 3]


def test_checkpointing_stops_at_the_last_tensor_that_is_kept():
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(x) + 1

    found = stats_of(forward, torch.randn(64, 64, requires_grad=True))
    assert found.func_names == ["exp", "add"]
    assert found.runtimes[0] > 0
    assert found.runtimes[1] == 0.0


def test_times_are_those_of_the_runtime_estimator(capsys: pytest.CaptureFixture[str]):
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), torch.randn(8, 64)
    runtime = RuntimeEstimator()
    with runtime(MODE):
        model(x)
    found = ours(model, x).sac_mod_stats["Sequential"]
    last = found.func_names.index("addmm", 3)
    assert found.runtimes[last] == 0.0  # it keeps its inputs before it runs
    assert runtime.mod_runtimes["Sequential"]["fw"] > sum(found.runtimes) > runtime.mod_runtimes["Sequential.0"]["fw"]


def test_other_ways_to_estimate_are_not_known():
    with pytest.raises(NotImplementedError, match="module-level"):
        SACEstimator()("module-level")


def test_what_is_printed(capsys: pytest.CaptureFixture[str]):
    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.native_dropout(x, 0.5, True)[0].relu_().exp()

    estimator = ours(Inside(forward), torch.randn(2, 8, requires_grad=True))
    estimator.display_modulewise_sac_stats(depth=2)
    estimator.display_modulewise_sac_stats(depth=2, print_tabular=True)
    out = capsys.readouterr().out
    assert out.count("Module: Inside") == 4
    assert out.count("native_dropout") == 4
    assert out.count("{0, 1}") == 2, "dropout and the work in place on its result are decided together"


# -- the curve -------------------------------------------------------------------------------------------------------------------


def two_costs() -> SACStats:
    """Four operators of 100 bytes that take 1, 2, 3 and 4 ms."""
    names = ["a", "b", "c", "d"]
    return SACStats(names, [1.0, 2.0, 3.0, 4.0], [100] * 4, [], [], [0, 1, 2, 3], [], force_store_random=False)


def test_the_curve_has_every_policy_of_the_greedy_order():
    assert [(one.stored_bytes, one.recompute_ms) for one in policies_of(two_costs())] == [
        *((400, 0.0), (300, 1.0), (200, 3.0), (100, 6.0), (0, 10.0))
    ]
    found = trade_off(two_costs(), None)
    assert dict(found.tradeoff_curve) == {0.0: 0.0, 0.25: 0.1, 0.5: pytest.approx(0.3), 0.75: pytest.approx(0.6), 1.0: 1.0}
    assert found.n_segments == 4
    assert found.slopes == pytest.approx([0.4, 0.8, 1.2, 1.6])


@pytest.mark.parametrize("n_segments", [1, 2, 3, 4, 9])
def test_a_fit_never_promises_less_than_is_needed(n_segments: int):
    found = trade_off(two_costs(), n_segments)
    assert found.n_segments == min(n_segments, 4)
    for x, y in found.tradeoff_curve.items():
        fitted = max(slope * x + intercept for slope, intercept in zip(found.slopes, found.intercepts, strict=True))
        assert y - 1e-12 <= fitted <= y + {1: 0.2, 2: 0.05, 3: 0.05}.get(n_segments, 0.0) + 1e-12


def test_a_curve_has_a_piece():
    with pytest.raises(ConfigError, match="at least one piece"):
        SACEstimator().pwlf_sac_tradeoff_curve(n_segments=0)


def test_the_curve_needs_no_further_package_and_ends_where_discarding_ends():
    """PyTorch's fit needs pwlf, begins at a hundredth and ends beyond all memory, what must be kept included."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return torch.exp(torch.exp(x) + 1) + 1

    x = torch.randn(32, 32)
    estimator = ours(Inside(forward), x)
    estimator.pwlf_sac_tradeoff_curve()
    found = estimator.sac_mod_tradeoff_stats["Inside"]
    assert min(found.tradeoff_curve) >= 0.0
    assert max(found.tradeoff_curve) <= 1.0
    try:
        import pwlf  # noqa: F401
    except ImportError:
        with pytest.raises(ImportError, match="pwlf"):
            theirs(Inside(forward), x).pwlf_sac_tradeoff_curve()
    else:
        estimator = theirs(Inside(forward), x)
        estimator.pwlf_sac_tradeoff_curve()
        assert max(estimator.sac_mod_tradeoff_stats["Inside"].tradeoff_curve) > 1.0, FIXED


# -- faults ----------------------------------------------------------------------------------------------------------------------


def test_a_second_use():
    model, x = nn.Sequential(nn.Linear(4, 4), nn.GELU()), torch.randn(2, 4)
    assert ours(model, x, times=2).sac_mod_stats == ours(model, x).sac_mod_stats
    assert theirs_fails(model, x, times=2), FIXED


def test_a_module_that_does_nothing():
    found = ours(nn.Sequential(nn.Identity()), torch.randn(2))
    found.pwlf_sac_tradeoff_curve()
    assert found.sac_mod_stats["Sequential"].func_names == []
    assert found.sac_mod_tradeoff_stats["Sequential"].sac_memory == 0
    assert theirs_fails(nn.Sequential(nn.Identity()), torch.randn(2)), FIXED


def test_views_only(monkeypatch: pytest.MonkeyPatch):
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.view(4).t()

    estimator = ours(Inside(forward), torch.randn(2, 2))
    estimator.pwlf_sac_tradeoff_curve()
    found = estimator.sac_mod_stats["Inside"]
    assert (found.view_like_ops, found.memory) == ([0, 1], [0, 0])
    monkeypatch.setitem(sys.modules, "pwlf", ModuleType("pwlf"))  # theirs does not get as far as using it
    with pytest.raises(ZeroDivisionError):
        theirs(Inside(forward), torch.randn(2, 2)).pwlf_sac_tradeoff_curve()


def test_work_in_place_on_a_copy():
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.clone().relu_()

    found = stats_of(forward, torch.randn(2, 2, requires_grad=True))
    assert (found.func_names, found.inplace_ops) == (["clone", "relu_"], [(1, 0)])
    attempts = [
        theirs_fails(Inside(forward), torch.randn(2, 2, requires_grad=True)) for _ in range(5)
    ]  # by addresses: not quite always
    assert any(attempts), FIXED


def test_work_in_place_on_a_view_of_an_input_must_not_run_twice():
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x.view(4).add_(1).exp()

    assert stats_of(forward, torch.randn(2, 2)).inplace_ops == [(1, 1)]
    assert theirs(Inside(forward), torch.randn(2, 2)).sac_mod_stats["Inside"].inplace_ops == [(1, 0)], FIXED


def test_a_block_that_is_called_twice_has_both_calls():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.block(self.block(x))

    x = torch.randn(2, 4)
    block = ours(Twice(), x).sac_mod_stats["Twice.block"]
    assert block.func_names == ["t", "addmm", "gelu"] * 2
    assert theirs(Twice(), x).sac_mod_stats["Twice.block"].func_names == ["t", "addmm", "gelu"], FIXED


@pytest.mark.parametrize(("dropout", "is_random"), [(0.5, True), (0.0, False)])
def test_attention_with_dropout_is_random(dropout: float, is_random: bool):
    """Its dropout is its fourth argument; PyTorch's estimator looks for it by name only."""

    def forward(query: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._scaled_dot_product_flash_attention(query, query, query, dropout)[0]

    with FakeTensorMode():
        query = torch.empty(1, 2, 8, 16, dtype=torch.bfloat16, device="meta")
    found = stats_of(forward, query)
    assert bool(found.rand_ops) == is_random
    assert not theirs(Inside(forward), query).sac_mod_stats["Inside"].rand_ops, FIXED


def test_a_module_that_raises_and_is_caught():
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.broken = Inside(lambda x: x @ x)
            self.block = nn.Sequential(nn.Linear(4, 4), nn.GELU())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.broken(x)
            except RuntimeError:
                return self.block(x)

    found = ours(Careful(), torch.randn(2, 4)).sac_mod_stats
    assert found["Careful.broken"].func_names == []
    assert found["Careful"].func_names == ["t", "addmm", "gelu"]


def test_all_random_operators_share_a_fate_with_what_works_on_them_in_place():
    def forward(x: torch.Tensor) -> torch.Tensor:
        first, _ = torch.native_dropout(x, 0.5, True)
        second, _ = torch.native_dropout(first.exp(), 0.5, True)
        return second.relu_().exp()

    estimator = ours(Inside(forward), torch.randn(16, 16, requires_grad=True))
    found, order = estimator.sac_mod_stats["Inside"], estimator.sac_mod_greedy_order_meta["Inside"]
    assert [found.func_names[i] for i in found.rand_ops] == ["native_dropout"] * 2
    together = next(one for one in order.msps_meta if one.op_idx == found.rand_ops[0])
    assert together.func_names == {"native_dropout", "relu_"}
    assert together.memory == sum(found.memory[i] for i in found.rand_ops)
