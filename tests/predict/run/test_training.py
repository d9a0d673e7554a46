"""Training steps that repeat are written down without being run, and the ledger is the one of the whole run, event by event."""

import textwrap

import pytest

from memfit.job import PredictOptions
from memfit.ledger.schema import TABLES, EventKind
from memfit.predict.run import known_calls
from memfit.predict.scripts.launchers import read_command
from memfit.predict.scripts.running import run_script

SCRIPTS = {
    "a perceptron, whose loss is outside": """
    import torch
    from torch import nn
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU(), nn.LayerNorm(256)))).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(9):
        x = torch.randn(32, 256, device="cuda")
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "a GPT with checkpointing, under autocast": """
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    import torch.nn.functional as F

    class Block(nn.Module):
        def __init__(self, dim=128):
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

        def forward(self, x):
            q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return x + F.dropout(self.out(y.transpose(1, 2).flatten(-2)), 0.1)

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(512, 128), nn.Linear(128, 512)
            self.blocks = nn.ModuleList(Block() for _ in range(3))

        def forward(self, tokens, labels):
            x = self.tokens(tokens)
            for number, block in enumerate(self.blocks):
                x = checkpoint(block, x, use_reentrant=REENTRANT)
            logits = self.head(x)
            return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    model = GPT().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for step in range(9):
        x = torch.randint(0, 512, (4, 64), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits, loss = model(x, x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    assert optimizer.state[model.head.weight]["step"].item() is not None
""",
    "frozen weights with small ones beside them": """
    import torch
    from torch import nn

    class Adapted(nn.Module):
        def __init__(self, dim=256):
            super().__init__()
            self.base, self.down, self.up = nn.Linear(dim, dim), nn.Linear(dim, 8, bias=False), nn.Linear(8, dim, bias=False)
            self.base.requires_grad_(False)

        def forward(self, x):
            return torch.relu(self.base(x) + self.up(self.down(x)))

    model = nn.Sequential(*(Adapted() for _ in range(5))).cuda()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad])
    for step in range(9):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(torch.randn(32, 256, device="cuda")).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "gradients that are added up, scaled, and the last loss kept": """
    import torch
    from torch import nn
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU()))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cuda")
    losses = []
    for step in range(7):
        for part in range(3):
            x = torch.randn(16, 256, device="cuda")
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), x) / 3
            scaler.scale(loss).backward()
            losses.append(loss.detach())
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
""",
    "a convolutional network with batch norm": """
    import torch
    from torch import nn
    layers = [layer for i in range(4) for layer in (nn.Conv2d(32 if i else 3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).cuda()
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(2):
        model.train()
        for step in range(6):
            x = torch.randn(8, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
            optimizer.zero_grad()
            loss = criterion(model(x), torch.randint(0, 10, (8,), device="cuda"))
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            for step in range(5):
                model(torch.randn(8, 3, 32, 32, device="cuda")).argmax(1).eq(0).sum().item()
""",
    "tied weights, a padding mask and a loss inside": """
    import torch
    from torch import nn
    import torch.nn.functional as F

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.head = nn.Embedding(500, 64), nn.Linear(64, 500, bias=False)
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
            self.head.weight = self.tokens.weight

        def forward(self, tokens, mask):
            if mask.all():
                mask = None
            logits = self.head(self.layers(self.tokens(tokens), src_key_padding_mask=None if mask is None else ~mask))
            return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    model = Tied().cuda()
    optimizer = torch.optim.Adagrad(model.parameters())
    for step in range(12):
        mask = torch.ones(4, 32, dtype=torch.bool)
        mask[0, 20:] = step % 3 == 0
        loss = model(torch.randint(0, 500, (4, 32), device="cuda"), mask.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "an output that goes unused, and pieces of batches": """
    import torch
    from torch import nn

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(500, 64)
            self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)
            self.pool = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())

        def forward(self, words):
            hidden = self.layers(self.words(words))
            return {"hidden": hidden, "pooled": self.pool(hidden[:, 0])}

    model = Tower().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(8):
        words = torch.randint(0, 500, (12, 32)).cuda()
        with torch.no_grad():
            kept = torch.cat([model(piece)["hidden"].mean(1) for piece in words.split(4)])
        kept = kept.requires_grad_()
        (kept @ kept.T).sum().backward()
        for piece, gradient in zip(words.split(4), kept.grad.split(4)):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                hidden = model(piece)["hidden"]
            (hidden.mean(1) * gradient).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "a recurrent network": """
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.rnn, self.head = nn.Embedding(500, 64), nn.LSTM(64, 128, 2, batch_first=True), nn.Linear(128, 20)

        def forward(self, tokens):
            return self.head(self.rnn(self.tokens(tokens))[0])

    model = Tagger().cuda()
    optimizer = torch.optim.RMSprop(model.parameters())
    for step in range(9):
        logits = model(torch.randint(0, 500, (8, 24), device="cuda"))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.zeros(192, dtype=torch.long, device="cuda"))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "a model of the library that most use": """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    model = LlamaForCausalLM(LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
                                         num_key_value_heads=2, vocab_size=512, use_cache=False)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(9):
        x = torch.randint(0, 512, (4, 64))
        mask = torch.ones_like(x)
        mask[0, 40 + step:] = 0
        count = mask.sum().cuda()
        x, mask = x.cuda(), mask.cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=x, labels=x, attention_mask=mask, num_items_in_batch=count).loss
        loss.backward()
        del x, mask, count
        optimizer.step()
        optimizer.zero_grad()
""",
    "a generator and a discriminator": """
    import torch
    from torch import nn
    def net(first, last):
        layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.LeakyReLU())]
        return nn.Sequential(nn.Linear(first, 256), nn.LeakyReLU(), *layers, nn.Linear(256, last)).cuda()
    generator, discriminator = net(32, 128), net(128, 1)
    optimizers = [torch.optim.Adam(each.parameters()) for each in (discriminator, generator)]
    for step in range(9):
        real, noise = torch.randn(16, 128, device="cuda"), torch.randn(16, 32, device="cuda")
        fake = generator(noise)
        loss = discriminator(fake.detach()).mean() - discriminator(real).mean()
        optimizers[0].zero_grad()
        loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        discriminator(fake).mean().backward()
        optimizers[1].step()
""",
}
SCRIPTS["a GPT with checkpointing of the old kind"] = SCRIPTS["a GPT with checkpointing, under autocast"].replace(
    "REENTRANT", "True"
)
SCRIPTS["a GPT with checkpointing, under autocast"] = SCRIPTS["a GPT with checkpointing, under autocast"].replace(
    "REENTRANT", "False"
)

OF_SEVERAL = {
    "fully sharded": """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("nccl")
    layers = [nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)) for _ in range(6)]
    model = nn.Sequential(*layers).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(9):
        loss = model(torch.randn(16, 128, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "data parallel": """
    import torch
    import torch.distributed as dist
    from torch import nn
    dist.init_process_group("nccl")
    layers = [nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(9):
        loss = model(torch.randn(16, 128, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}
ACCUMULATING = """
    for number in range(24):
        BEFORE
        loss = model(torch.randn(16, 128, device="cuda")).pow(2).mean() / 6
        loss.backward()
        if number % 6 == 5:
            optimizer.step()
            optimizer.zero_grad()
"""
"""Between the first and the last batch of a step, calls are alike."""


def accumulating(kind, before):
    """``kind``, with several batches to a step, and ``before`` ahead of each."""
    setting_up, _ = OF_SEVERAL[kind].split("    for step in")
    return setting_up + ACCUMULATING.replace("BEFORE", before).lstrip("\n")


OF_SEVERAL |= {
    "fully sharded, with whole gradients added up": accumulating(
        "fully sharded",
        "model.set_requires_gradient_sync(number % 6 == 5)",
    ),
    "fully sharded, with whole gradients added up in float32": accumulating(
        "fully sharded",
        "model.set_requires_gradient_sync(number % 6 == 5)",
    )
    .replace("import fully_shard", "import MixedPrecisionPolicy, fully_shard")
    .replace("fully_shard(layer)", "fully_shard(layer, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))"),
    "sharded and replicated, with shards added up": accumulating(
        "fully sharded",
        "model.set_requires_all_reduce(number % 6 == 5)",
    )
    .replace("import fully_shard", "import fully_shard\n    from torch.distributed.device_mesh import init_device_mesh")
    .replace("model = nn", 'mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))\n    model = nn')
    .replace("fully_shard(layer)", "fully_shard(layer, mesh=mesh)")
    .replace("fully_shard(model)", "fully_shard(model, mesh=mesh)"),
    "data parallel, reduced in the last batch": accumulating(
        "data parallel",
        "model.require_backward_grad_sync = number % 6 == 5",
    ),
}

RUN = ("a recurrent network",)
"""Small ones are run."""


def run(tmp_path, body, monkeypatch, all_calls, launcher=()):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(body))
    monkeypatch.setenv(known_calls.RUN_ALL, "1" if all_calls else "0")
    job = read_command([*launcher, str(script)])
    return run_script(job, PredictOptions(gpu="H200", torch_version="2.11+cu130")).prediction


def num_replaced(prediction):
    """Calls of models, and steps of optimizers."""
    notes = [note.split() for note in prediction.assumptions if "without running them" in note]
    return tuple(int(word) if word.isdigit() else 0 for word in (notes[0][0], notes[0][5])) if notes else (0, 0)


def assert_the_same(found, expected):
    """Every column of every table but the clock's; times to 20 microseconds."""
    for ledger in (found.ledger, expected.ledger):
        ledger.check()
    end = _end_of_training(expected.ledger)
    for table in TABLES:
        for name, column in getattr(expected.ledger, table.NAME).columns().items():
            if table.NAME == "work" or name.endswith("_ns"):
                continue
            other = getattr(getattr(found.ledger, table.NAME), name)
            if table.NAME == "events":
                column, other = column[:end], other[:end]
            assert column.tolist() == other.tolist(), (table.NAME, name)
    assert found.ledger.categories.tolist() == expected.ledger.categories.tolist()
    assert abs(found.ledger.events.time_ns[:end] - expected.ledger.events.time_ns[:end]).max() < 20_000
    assert found.ledger.strings == expected.ledger.strings
    assert (found.peak_allocated, found.peak_reserved) == (expected.peak_allocated, expected.peak_reserved)


def _end_of_training(ledger):
    """When the script has ended, what is left is freed in any order."""
    kept = (ledger.events.kind != EventKind.FREE).nonzero()[0]
    return int(kept.max()) + 1


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_training_that_is_written_down_is_as_if_it_had_run(name, tmp_path, monkeypatch):
    found, expected = (run(tmp_path, SCRIPTS[name], monkeypatch, all_calls) for all_calls in (False, True))
    assert_the_same(found, expected)
    assert num_replaced(found)[0] >= (0 if name in RUN else 4)
    assert num_replaced(found)[1] >= 4


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_so_is_one_of_several_processes(name, tmp_path, monkeypatch):
    launcher = ("torchrun", "--nproc-per-node", "4")
    found, expected = (run(tmp_path, OF_SEVERAL[name], monkeypatch, all_calls, launcher) for all_calls in (False, True))
    assert_the_same(found, expected)
    assert num_replaced(found)[0] >= (0 if name in RUN else 4)
