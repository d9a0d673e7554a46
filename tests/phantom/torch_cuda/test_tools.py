"""What ``torch.cuda`` has beside its answers."""

from __future__ import annotations

import pytest
import torch

import memfit


@pytest.mark.parametrize("overflows", [0, 2])
def test_a_loss_scaler_skips_the_steps_that_are_expected_to_overflow(overflows: int):
    updated: list[bool] = []

    def build():
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")

        def step():
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(torch.randn(8, 64, device="cuda")).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            updated.append(bool(optimizer.state))

        return step

    prediction = memfit.predict(build, gpu="H200", steps=3, expected={"overflows": overflows} if overflows else {})
    assert updated == [number >= overflows for number in range(3)]
    (named,) = [sentence for sentence in prediction.assumptions if "loss scaler" in sentence]
    assert named.endswith(f": {overflows or 'none'}")


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_makes_all_its_iterations(search: str | None):
    kept: list[int] = []
    tolerances: list[tuple[float, float]] = []

    def build():
        model = torch.nn.Linear(64, 64).cuda()
        data = torch.randn(8, 64, device="cuda")
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, max_eval=40, history_size=9, line_search_fn=search)

        def closure():
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            return loss

        def step():
            optimizer.step(closure)
            kept.append(len(optimizer.state[model.weight]["old_dirs"]))
            tolerances.append((optimizer.param_groups[0]["tolerance_grad"], optimizer.param_groups[0]["tolerance_change"]))

        return step

    prediction = memfit.predict(build, gpu="H200", steps=3)
    assert kept == [3, 7, 9]
    assert set(tolerances) == {(1e-7, 1e-9)}
    assert any("L-BFGS" in sentence for sentence in prediction.assumptions)


@pytest.mark.parametrize("is_padded", [False, True])
def test_transformers_are_evaluated_as_they_are_trained(is_padded: bool):
    def build():
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).cuda().eval()
        x = torch.randn(4, 16, 64, device="cuda")
        mask = torch.ones(4, 16, dtype=torch.bool, device="cuda").triu(8) if is_padded else None

        def step():
            with torch.no_grad():
                assert encoder(x, src_key_padding_mask=mask).shape == x.shape

        return step

    prediction = memfit.predict(build, gpu="H200", steps=1)
    operators = {prediction.ledger.strings[op] for op in prediction.ledger.blocks.op}
    assert "aten.native_layer_norm.default" in operators
    assert any("evaluated as they are trained" in sentence for sentence in prediction.assumptions)
