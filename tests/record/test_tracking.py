"""What a tracked run leaves in its ledger: exact bytes, categories, names, steps."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import memfit
from memfit.analysis import current_breakdown, find_step_peaks, gather_module_stats
from memfit.errors import ConfigError
from memfit.ledger import Category, Phase

F32 = 4


class Block(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def model_of(num_blocks=2, dim=8):
    torch.manual_seed(0)
    return nn.Sequential(*(Block(dim) for _ in range(num_blocks)))


def train(model, optimizer, x, steps=1):
    for _ in range(steps):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def bytes_by_category(ledger):
    return {
        category: int(ledger.block_peak_bytes[ledger.categories == category].sum())
        for category in Category
        if (ledger.categories == category).any()
    }


def paths(ledger, phase):
    return [ledger.module_path(ledger.scopes.module[i]) for i in range(len(ledger.scopes)) if ledger.scopes.phase[i] == phase]


def parameter_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters())


def test_parameters_gradients_and_optimizer_state_have_their_bytes():
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.randn(3, 8)
    with memfit.track(model, optimizer, x) as tracker:
        model(x).sum().backward()
        optimizer.step()
    ledger = tracker.ledger.check()
    held, size = current_breakdown(ledger, 0), parameter_bytes(model)
    num_parameters = len(list(model.parameters()))
    assert held[Category.PARAMETER] == size
    assert held[Category.GRADIENT] == size
    assert held[Category.OPTIMIZER_STATE] == 2 * size + F32 * num_parameters  # two moments, and a step counter each
    assert held[Category.INPUT] == 3 * 8 * F32
    assert ledger.info.complete


def test_saved_activations_and_temporaries_are_told_apart():
    linear = nn.Linear(8, 8, bias=False)
    x = torch.randn(4, 8)
    with memfit.track(linear, x) as tracker:
        hidden = linear(x)  # saved by sin
        loss = (hidden.sin() * 2).sum()  # sin's result is not needed again
        del hidden
        loss.backward()
    ledger = tracker.ledger.check()
    sizes = bytes_by_category(ledger)
    assert sizes[Category.ACTIVATION] == 4 * 8 * F32 + 2 * F32  # hidden, the loss, and the 1 that backward starts from
    assert sizes[Category.FORWARD_TEMPORARY] == 2 * 4 * 8 * F32


def test_optimizer_temporaries_are_not_optimizer_state():
    model = model_of()
    for foreach in (False, True):
        optimizer = torch.optim.AdamW(model.parameters(), foreach=foreach)
        x = torch.randn(3, 8)
        with memfit.track(model, optimizer, x) as tracker:
            train(model, optimizer, x, steps=2)
        sizes = bytes_by_category(tracker.ledger.check())
        assert sizes[Category.OPTIMIZER_STATE] == 2 * parameter_bytes(model) + F32 * len(list(model.parameters()))
        assert sizes[Category.OPTIMIZER_TEMPORARY] >= 2 * parameter_bytes(model)


def test_names_are_fully_qualified():
    model = model_of()
    with memfit.track(model) as tracker:
        model(torch.randn(3, 8)).sum().backward()
    ledger = tracker.ledger.check()
    forward = ["(Sequential)", "0", "0.up", "0.down", "1", "1.up", "1.down"]
    assert paths(ledger, Phase.FORWARD) == forward
    assert paths(ledger, Phase.BACKWARD) == ["", "(Sequential)", "1", "1.down", "1.up", "0", "0.down", "0.up"]
    gradients = ledger.roles.role == Category.GRADIENT
    assert {ledger.strings[name] for name in ledger.roles.name[gradients]} == {name for name, _ in model.named_parameters()}


def test_a_second_model_is_told_apart_by_its_class():
    first, second = model_of(1), nn.Linear(8, 2)
    with memfit.track(first, second) as tracker:
        second(first(torch.randn(3, 8))).sum().backward()
    assert paths(tracker.ledger.check(), Phase.FORWARD) == ["(Sequential)", "0", "0.up", "0.down", "Linear"]


def test_wrappers_share_the_name_of_what_they_wrap():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = model_of()
    model[1] = checkpoint_wrapper(model[1])
    with memfit.track(model) as tracker:
        model(torch.randn(3, 8)).sum().backward()
    ledger = tracker.ledger.check()
    assert set(paths(ledger, Phase.FORWARD)) == {"(Sequential)", "0", "0.up", "0.down", "1", "1.up", "1.down"}
    assert paths(ledger, Phase.RECOMPUTE) == ["1", "1.up", "1.down"]


def test_steps_are_marked_by_themselves():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, 8)
    with memfit.track(model, optimizer, x) as tracker:
        train(model, optimizer, x, steps=3)
    peaks = find_step_peaks(tracker.ledger.check(), 0)
    assert [peak.step for peak in peaks] == [-1, 0, 1, 2]
    assert peaks[2].peak.size_bytes == peaks[3].peak.size_bytes


def test_accumulated_gradients_make_one_step():
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, 8)
    with memfit.track(model, optimizer, x) as tracker:
        for _ in range(2):
            for _ in range(3):
                model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    ledger = tracker.ledger.check()
    assert len(ledger.step_starts) == 2
    assert bytes_by_category(ledger)[Category.GRADIENT] == 2 * parameter_bytes(model)


def test_steps_can_be_marked_by_hand():
    model = model_of()
    with memfit.track(model) as tracker:
        for _ in range(3):
            tracker.step()
            model(torch.randn(3, 8))
    assert len(tracker.ledger.check().step_starts) == 3


def test_gradients_are_summed_in_place_as_without_us():
    """Two uses of one tensor: autograd adds the second gradient into the first, and so does the ledger."""
    x = torch.randn(1000, requires_grad=True)
    with memfit.track(x) as tracker:
        hidden = x * 2
        torch.autograd.backward(torch.sin(hidden).sum() + torch.cos(hidden).sum())
    ledger = tracker.ledger.check()
    born_in_backward = ledger.block_phase == Phase.BACKWARD
    big = ledger.block_peak_bytes == 1000 * F32
    names = [ledger.strings[op] for op in ledger.blocks.op[born_in_backward & big]]
    assert "aten.add.Tensor" not in names


def test_gradients_that_others_hold_are_summed_into_a_new_tensor():
    x = torch.randn(1000, requires_grad=True)

    def gradients_of_hidden():
        kept = []
        hidden = x * 2
        hidden.register_hook(kept.append)
        wave = torch.sin(hidden)
        doubled = hidden + hidden  # its backward runs first, and hands one gradient to hidden twice
        (wave.sum() + doubled.sin().sum()).backward()
        return kept

    bare = gradients_of_hidden()
    with memfit.track(x) as tracker:
        tracked = gradients_of_hidden()
    ledger = tracker.ledger.check()
    assert torch.equal(bare[0], tracked[0])
    born_in_backward = (ledger.block_phase == Phase.BACKWARD) & (ledger.block_peak_bytes == 1000 * F32)
    assert [ledger.strings[op] for op in ledger.blocks.op[born_in_backward]].count("aten.add.Tensor") == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(reentrant):
    model = model_of(3)
    x = torch.randn(3, 8, requires_grad=True)
    with memfit.track(model, x) as tracker:
        hidden = x
        for block in model:
            hidden = checkpoint(block, hidden, use_reentrant=reentrant)
        hidden.sum().backward()
    ledger = tracker.ledger.check()
    assert paths(ledger, Phase.RECOMPUTE) == ["2", "2.up", "2.down", "1", "1.up", "1.down", "0", "0.up", "0.down"]
    assert "1.up" in paths(ledger, Phase.BACKWARD)
    assert bytes_by_category(ledger)[Category.GRADIENT] == parameter_bytes(model) + 3 * 8 * F32


def test_selective_checkpointing_recomputes_less():
    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        return create_selective_checkpoint_contexts(policy)

    model, x = model_of(1), torch.randn(3, 8, requires_grad=True)
    events = {}
    for kind in ("full", "selective"):
        with memfit.track(model, x) as tracker:
            extra = {"context_fn": contexts} if kind == "selective" else {}
            checkpoint(model, x, use_reentrant=False, **extra).sum().backward()
        ledger = tracker.ledger.check()
        recomputed = ledger.block_phase == Phase.RECOMPUTE
        events[kind] = [ledger.strings[op] for op in ledger.blocks.op[recomputed]]
        model.zero_grad()
    assert "aten.addmm.default" in events["full"]
    assert "aten.addmm.default" not in events["selective"]
    assert "aten.relu.default" in events["selective"]


def test_optimizer_in_backward():
    model = model_of()
    optimizers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    x = torch.randn(3, 8)
    with memfit.track(model, *optimizers.values(), x) as tracker:
        for _ in range(2):
            model(x).sum().backward()
    ledger = tracker.ledger.check()
    sizes = bytes_by_category(ledger)
    assert sizes[Category.OPTIMIZER_STATE] == parameter_bytes(model)
    assert sizes[Category.GRADIENT] >= parameter_bytes(model)
    assert len(ledger.step_starts) == 2
    assert current_breakdown(ledger, 0).get(Category.GRADIENT, 0) == 0


def test_several_optimizers_and_a_closure():
    model = model_of()
    x = torch.randn(3, 8)
    halves = list(model[0].parameters()), list(model[1].parameters())
    first, second = torch.optim.Adam(halves[0], foreach=False), torch.optim.LBFGS(halves[1], max_iter=2, history_size=1)

    def closure():
        second.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    with memfit.track(model, first, second, x) as tracker:
        for _ in range(2):
            second.step(closure)
            first.step()
            first.zero_grad()
    ledger = tracker.ledger.check()
    assert bytes_by_category(ledger)[Category.OPTIMIZER_STATE] > 2 * sum(p.numel() * F32 for p in halves[0])


def test_a_module_called_many_times_and_shared():
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"first": shared, "second": shared})
    x = torch.randn(3, 8)
    with memfit.track(model, x) as tracker:
        hidden = x
        for name in ("first", "second", "first"):
            hidden = model[name](hidden)
        hidden.sum().backward()
    ledger = tracker.ledger.check()
    assert paths(ledger, Phase.FORWARD) == ["first"] * 3
    assert paths(ledger, Phase.BACKWARD) == ["", "first", "first", "first"]
    stats = {entry.path: entry for entry in gather_module_stats(ledger, 0)}
    assert stats["first"].calls == 3
    assert stats["(ModuleDict)"].parameter_bytes == parameter_bytes(shared)


def test_tied_weights_belong_to_both_modules():
    embed, head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
    head.weight = embed.weight
    model = nn.Sequential(embed, head)
    with memfit.track(model) as tracker:
        model(torch.tensor([1, 2])).sum().backward()
    stats = {entry.path: entry for entry in gather_module_stats(tracker.ledger.check(), 0)}
    assert [stats[path].parameter_bytes for path in ("0", "1", "(Sequential)")] == [160, 160, 160]


def test_keyword_arguments_are_inputs_too():
    class Scale(nn.Module):
        def forward(self, *, hidden, mask):
            return hidden * mask

    model, hidden, mask = Scale(), torch.randn(4, 8), torch.ones(8)
    with memfit.track(model) as tracker:
        model(hidden=hidden, mask=mask)
    ledger = tracker.ledger.check()
    assert bytes_by_category(ledger)[Category.INPUT] == (4 * 8 + 8) * F32
    assert gather_module_stats(ledger, 0)[0].input_bytes == (4 * 8 + 8) * F32


def test_a_resized_storage():
    model = model_of(1)
    with memfit.track(model) as tracker:
        buffer = torch.empty(100)
        buffer.untyped_storage().resize_(0)
        after_free = sum(current_breakdown(tracker.ledger, 0).values())
        buffer.untyped_storage().resize_(4000)
        after_growth = sum(current_breakdown(tracker.ledger, 0).values())
        torch.empty(0).resize_(7)
    assert after_free == parameter_bytes(model)
    assert after_growth == parameter_bytes(model) + 4000
    assert tracker.ledger.check().deltas.max() == 4000


def test_replaced_parameter_data_is_a_parameter_again():
    model = model_of(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(3, 8)
    with memfit.track(model, optimizer, x) as tracker:
        train(model, optimizer, x)
        for parameter in model.parameters():
            parameter.data = parameter.data.double()
        train(model, optimizer, x.double())
    assert current_breakdown(tracker.ledger.check(), 0)[Category.PARAMETER] == parameter_bytes(model)  # now in float64


def test_a_model_built_inside():
    with memfit.track() as tracker:
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer, torch.randn(3, 8), steps=2)
    ledger = tracker.ledger.check()
    held = current_breakdown(ledger, 0)
    assert held[Category.PARAMETER] == parameter_bytes(model)
    assert len(ledger.step_starts) == 2


def test_fake_tensors_entered_before_and_after():
    from torch._subclasses.fake_tensor import FakeTensorMode

    def run():
        model = model_of()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        train(model, optimizer, torch.randn(3, 8), steps=2)
        return model

    with memfit.track() as real:
        model = run()
    with FakeTensorMode(), memfit.track() as inside:
        run()
    with memfit.track() as outside, FakeTensorMode():
        run()
    expected = bytes_by_category(real.ledger.check())
    assert expected[Category.PARAMETER] == parameter_bytes(model)
    assert bytes_by_category(inside.ledger.check()) == expected
    assert bytes_by_category(outside.ledger.check()) == expected


def test_fake_cuda_tensors_count_in_units_of_512():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), memfit.track() as tracker:
        tensor = torch.empty(3, device="cuda")
    ledger = tracker.ledger.check()
    assert ledger.devices[0].name == "cuda:0"
    assert ledger.deltas.max() == 512
    assert tensor.shape == (3,)


def test_a_tracked_run_is_judged():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), memfit.track() as tracker:
        tensors = [torch.empty(6 * 2**30, dtype=torch.uint8, device="cuda") for _ in range(3)]
    assert len(tensors) == 3
    assert tracker.fit(gpu="A10").fits
    verdict = tracker.fit(gpu="T4", torch_version="2.11")
    assert (verdict.peak_allocated, verdict.fits) == (18 * 2**30, False)
    with pytest.raises(ConfigError, match="H100-80GB"):
        tracker.fit(gpu="H1000")


def test_tensors_without_memory():
    with memfit.track() as tracker:
        model = nn.Linear(8, 8, device="meta")
        model(torch.empty(3, 8, device="meta"))
    assert len(tracker.ledger.check().blocks) == 0


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_sparse_tensors():
    with memfit.track() as tracker:
        sparse = torch.eye(4).to_sparse()
        csr = torch.eye(4).to_sparse_csr()
    parts = (sparse._indices(), sparse._values(), csr.crow_indices(), csr.col_indices(), csr.values())
    storages = {id(part.untyped_storage()): part.untyped_storage() for part in parts}
    held = sum(current_breakdown(tracker.ledger.check(), 0).values())
    assert held == sum(storage.nbytes() for storage in storages.values())


def test_nested_containers_are_unpacked_and_nonsense_is_refused():
    model = model_of(1)
    batch = {"x": [torch.randn(3, 8)], "name": "train", "size": 3, "nothing": None}
    with memfit.track((model, batch)) as tracker:
        pass
    assert bytes_by_category(tracker.ledger.check())[Category.INPUT] == 3 * 8 * F32
    with pytest.raises(ConfigError, match="cannot track a set"):
        memfit.track({1, 2})


def test_inference():
    model = model_of()
    with memfit.track(model) as tracker, torch.inference_mode():
        model(torch.randn(3, 8))
    assert paths(tracker.ledger.check(), Phase.BACKWARD) == []


def test_copies_in_inference_mode():
    """There, operators that are made of others come whole: whether ``to`` and its kin made a copy, only their results tell."""

    def held(mode):
        x = torch.ones(100, 10)
        with memfit.track(x) as tracker, mode():
            kept = x.to(torch.float64), x.to(torch.float32), x.t().contiguous(), x.t().reshape(-1), x.flatten(), x.clone()
        assert len(kept) == 6
        return sum(bytes_by_category(tracker.ledger.check()).values())

    assert held(torch.inference_mode) == held(torch.no_grad) == 1000 * (F32 + 2 * F32 + 3 * F32)


def test_autograd_grad_and_double_backward():
    x = torch.randn(5, requires_grad=True)
    linear = nn.Linear(5, 5)
    with memfit.track(linear, x) as tracker:
        (gradient,) = torch.autograd.grad(linear(x).sin().sum(), x, create_graph=True)
        gradient.pow(2).sum().backward()
    ledger = tracker.ledger.check()
    assert sum(path == "" for path in paths(ledger, Phase.BACKWARD)) == 2
