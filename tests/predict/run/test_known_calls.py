"""Forward passes that repeat are written down without being run, and the ledger is the one of the whole run."""

import textwrap

import pytest

from memfit.job import PredictOptions
from memfit.ledger.schema import TABLES
from memfit.predict.run import known_calls, windows
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script

MODEL = """
    import torch
    from torch import nn
    import torch.nn.functional as F


    class Block(nn.Module):
        def __init__(self, dim):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.drop = nn.Dropout(0.1)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0.0)
            return x + self.drop(self.out(y.transpose(1, 2).flatten(-2)))


    class GPT(nn.Module):
        def __init__(self, vocab=512, dim=128, length=64):
            super().__init__()
            self.length = length
            self.tokens, self.positions = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
            self.blocks, self.norm = nn.ModuleList(Block(dim) for _ in range(2)), nn.LayerNorm(dim)
            self.head = nn.Linear(dim, vocab, bias=False)

        def forward(self, tokens, labels=None):
            x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            if labels is None:
                return self.head(self.norm(x)[:, [-1]]), None
            logits = self.head(self.norm(x))
            return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())


    def batch(size=4, length=64):
        return torch.randint(0, 512, (size, length)).cuda(), torch.randint(0, 512, (size, length)).cuda()


    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    autocast = torch.autocast("cuda", dtype=torch.bfloat16)
"""

TRAINING = """
    for _ in range(3):
        x, y = batch()
        with autocast:
            logits, loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""

REPEATING = {
    "an evaluation, as nanoGPT has it": (
        """
    @torch.no_grad()
    def estimate():
        model.eval()
        for _ in range(2):
            losses = torch.zeros(12)
            for number in range(12):
                x, y = batch()
                with autocast:
                    logits, loss = model(x, y)
                losses[number] = loss.item()
        model.train()

    estimate()
""",
        24 - 1 - 2,  # the first takes cuBLAS's workspaces for good
    ),
    "with dropout at work, under one autocast": (
        """
    with torch.no_grad(), autocast:
        for _ in range(10):
            model(*batch())
""",
        10 - 1 - 2,  # the first casts the weights, too
    ),
    "pieces of batches": (
        """
    with torch.no_grad():
        for _ in range(3):
            x, y = batch(16)
            for piece, wanted in zip(x.split(4), y.split(4)):
                model(piece, wanted)
""",
        12 - 1 - 2,
    ),
    "in inference mode, with and without labels": (
        """
    for labelled in (True, False):
        for _ in range(6):
            x, y = batch()
            with torch.inference_mode():
                logits, loss = model(x, y if labelled else None)
""",
        6 - 1 - 2 + 6 - 2,
    ),
    "outputs that are kept, in a dictionary": (
        """
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, **inputs):
            logits, loss = self.inner(inputs["x"], inputs["y"])
            return {"logits": logits[:, -1], "loss": loss, "more": [logits.transpose(0, 1), 3]}

    wrapped, kept = Wrapped(), []
    with torch.no_grad():
        for _ in range(8):
            x, y = batch()
            found = wrapped(x=x, y=y)
            assert found["more"][1] == 3
            assert found["logits"].untyped_storage() is found["more"][0].untyped_storage()
            kept.append(found["logits"].clone() if len(kept) % 2 else found["logits"])
""",
        8 - 1 - 2,
    ),
}

NOT_REPEATING = {
    "a layer that is left out now and then, by a generator of the script's": """
    import numpy as np

    draws = np.random.default_rng(1)

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(12))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x) if draws.random() < 0.99 else x
            return x

    deep = Deep().cuda()
    with torch.no_grad():
        for _ in range(30):
            deep(torch.randn(8, 64, device="cuda"))
""",
    "every tenth call does more, by a counter of the script's": """
    num_calls = 0

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(12))

        def forward(self, x):
            global num_calls
            num_calls += 1
            for layer in self.layers[: 12 if num_calls % 10 == 0 else 4]:
                x = x + layer(x)
            return x

    deep = Deep().cuda()
    with torch.no_grad():
        for _ in range(30):
            deep(torch.randn(8, 64, device="cuda"))
""",
    "every tenth call does more, by a counter in a dictionary": """
    state = {"calls": 0}

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(12))

        def forward(self, x):
            state["calls"] += 1
            for layer in self.layers[: 12 if state["calls"] % 10 == 0 else 4]:
                x = x + layer(x)
            return x

    deep = Deep().cuda()
    with torch.no_grad():
        for _ in range(30):
            deep(torch.randn(8, 64, device="cuda"))
""",
    "a layer that is left out now and then": """
    import random

    class Deep(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(12))

        def forward(self, x):
            for layer in self.layers:
                x = x + layer(x) if random.random() < 0.99 else x
            return x

    random.seed(1)
    deep = Deep().cuda()
    with torch.no_grad():
        for _ in range(30):
            deep(torch.randn(8, 64, device="cuda"))
""",
    "a number that decides": """
    class Sized(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model.blocks[0]

        def forward(self, x, count):
            return self.inner(x.repeat(int(count.expand(100_000)[7].item()), 1, 1)).sum(0)

    sized = Sized()
    with torch.no_grad():
        for number in range(1, 9):
            sized(torch.randn(2, 16, 128, device="cuda"), torch.tensor(number).cuda())
""",
    "a generation loop, whose input grows, or is a part of what grows": """
    model.eval()
    with torch.no_grad():
        tokens = batch(1, 60)[0]
        for _ in range(10):
            logits, _ = model(tokens[:, -model.length:])
            chosen = torch.multinomial(logits[:, -1].softmax(-1), 1)
            tokens = torch.cat((tokens, chosen), 1)
    model.train()
""",
    "a cache that grows": """
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.cache = model.blocks[0], None

        def forward(self, x):
            self.cache = x if self.cache is None else torch.cat((self.cache, x), 1)
            return self.inner(self.cache)[:, -1]

    cached = Cached()
    with torch.no_grad():
        for _ in range(10):
            cached(torch.randn(2, 1, 128, device="cuda"))
""",
    "tensors that a module keeps in a list": """
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.kept = model.blocks[0], {"all": []}

        def forward(self, x):
            self.kept["all"].append(self.inner(x))
            return self.kept["all"][-1] + 1

    keeping = Keeping()
    with torch.no_grad():
        for _ in range(10):
            keeping(torch.randn(2, 8, 128, device="cuda"))
""",
    "a counter that changes what a module does": """
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = model.blocks[0], 0

        def forward(self, x):
            self.calls += 1
            return self.inner(torch.cat(2 * (x,)) if self.calls == 8 else x).sum()

    counting = Counting()
    with torch.no_grad():
        for _ in range(10):
            counting(torch.randn(2, 8, 128, device="cuda"))
""",
    "hooks that are registered in between": """
    def note(module, inputs, output):
        return output[0].double(), output[1]

    with torch.no_grad():
        for number in range(8):
            if number % 2:
                model.register_forward_hook(note)
            model(*batch())
    model._forward_hooks.clear()
""",
    "values that are read": """
    class Reading(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model.blocks[0]

        def forward(self, x, lengths):
            return self.inner(x[:, : int(lengths.max())])

    reading = Reading()
    with torch.no_grad():
        for length in (4, 4, 4, 4, 4, 8, 8, 8, 8, 8):
            reading(torch.randn(2, 8, 128, device="cuda"), torch.tensor([2, length]))
""",
    "hooks that keep what they see": """
    seen = []
    model.norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        for _ in range(8):
            model(*batch())
""",
    "objects that are passed in and out": """
    class Cache:
        def __init__(self):
            self.parts = []

    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model.blocks[0]

        def forward(self, x, cache):
            cache.parts.append(x)
            return self.inner(torch.cat(cache.parts, 1)[:, -1:]), cache

    growing, cache = Growing(), Cache()
    with torch.no_grad():
        for _ in range(8):
            out, cache = growing(torch.randn(2, 1, 128, device="cuda"), cache)
""",
}

CHANGING = """
    model.eval()
    with torch.no_grad():
        for change in (lambda: None, lambda: model.train(), lambda: model.bfloat16(), lambda: model.float().eval()):
            change()
            for _ in range(5):
                model(*batch())
    model.train()
"""


def run(tmp_path, body, monkeypatch, all_calls):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(MODEL) + textwrap.dedent(body) + textwrap.dedent(TRAINING))
    monkeypatch.setenv(known_calls.RUN_ALL, "1" if all_calls else "0")
    return run_script(read_command([str(script)]), PredictOptions(gpu="H200", torch_version="2.11+cu130")).prediction


def num_replaced(prediction):
    notes = [note for note in prediction.assumptions if "without running them" in note]
    return int(notes[0].split()[0]) if notes and notes[0].split()[0] != "no" else 0


def assert_the_same(found, expected):
    """Every column of every table but the clock's, and so every figure."""
    for table in TABLES:
        for name, column in getattr(expected.ledger, table.NAME).columns().items():
            if not name.endswith("_ns"):
                assert column.tolist() == getattr(getattr(found.ledger, table.NAME), name).tolist(), (table.NAME, name)
    assert found.ledger.strings == expected.ledger.strings
    assert (found.peak_allocated, found.peak_reserved, found.smallest_fit) == (
        expected.peak_allocated,
        expected.peak_reserved,
        expected.smallest_fit,
    )


@pytest.mark.parametrize("name", REPEATING)
def test_what_repeats_is_not_run_again(name, tmp_path, monkeypatch):
    body, count = REPEATING[name]
    found, expected = (run(tmp_path, body, monkeypatch, all_calls) for all_calls in (False, True))
    assert num_replaced(found) == count
    assert num_replaced(expected) == 0
    assert_the_same(found, expected)


@pytest.mark.parametrize("name", NOT_REPEATING)
def test_what_does_not_repeat_is_run(name, tmp_path, monkeypatch):
    found, expected = (run(tmp_path, NOT_REPEATING[name], monkeypatch, all_calls) for all_calls in (False, True))
    assert num_replaced(found) == 0
    assert_the_same(found, expected)


def test_a_model_that_was_changed_is_watched_anew(tmp_path, monkeypatch):
    found, expected = (run(tmp_path, CHANGING, monkeypatch, all_calls) for all_calls in (False, True))
    assert num_replaced(found) == (5 - 1 - 2) + 2 * (5 - 2) + 5  # the last is as the first again
    assert_the_same(found, expected)


def test_the_proof_can_fail(tmp_path, monkeypatch):
    """Without the rule that a call may keep nothing but its outputs, the figures would be wrong, and this suite would say so."""
    body = REPEATING["an evaluation, as nanoGPT has it"][0]
    monkeypatch.setattr(windows.Tape, "write", lambda tape, window, sizes, **how: windows.Written(0, 0, -1))
    found, expected = (run(tmp_path, body, monkeypatch, all_calls) for all_calls in (False, True))
    with pytest.raises(AssertionError):
        assert_the_same(found, expected)


@pytest.mark.filterwarnings("ignore:with_modules is deprecated")  # from torch 2.15 on
@pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle")  # torch 2.11, of every use
def test_torchs_profiler_knows_the_module_of_a_call(tmp_path, monkeypatch):
    """It takes the module from the variable ``self`` of what stands in the place of ``nn.Module.__call__``."""
    profiled = """
    with torch.profiler.profile(with_stack=True, with_modules=True):
        model(*batch())[1].backward()
    optimizer.step()
"""
    assert run(tmp_path, profiled, monkeypatch, False).ledger.info.complete
