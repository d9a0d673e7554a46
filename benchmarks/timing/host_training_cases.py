"""What the host spends on further kinds of work, in microseconds: images, experts, layers of transformers, distributed tensors.

    python benchmarks/timing/host_training_cases.py FILE [PART ...]     # on a GPU: writes FILE, and what was known in it stays

Every case is as in ``host_cases.py``. Hosts differ from one day to the next: ``first`` and ``last`` are cases of that file,
measured before and after the others, by which figures of one day can be brought to those of another.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.timing.host_cases import CASES as KNOWN
from benchmarks.timing.host_cases import Case, begin_world, microseconds, repeated

REFERENCE = (
    "operator mul",
    "operator mul with grad",
    "operator view with grad",
    "operator linear with grad",
    "backward mul scalar",
    "backward view",
    "backward linear",
    "python loop of 1000",
    "module linear",
    "leaf gradient",
    "one backward of one operator",
    "optimizer adamw loop, 150 parameters",
    "optimizer adamw, 150 parameters",
)
PARTS: dict[str, dict[str, Callable[[str], Case]]] = {}
CHAIN = 50


def forward(function: Callable[[Any], Any], make: Callable[[str], Any], grad: bool) -> Callable[[str], Case]:
    def case(device: str) -> Case:
        x = make(device)
        if grad and x.is_floating_point():
            x.requires_grad_()
        return repeated(lambda: function(x), CHAIN)

    return case


def both(function: Callable[[Any], Any], make: Callable[[str], Any], count: int = CHAIN) -> Callable[[str], Case]:
    """The same function again and again on one tensor, then backward through all of them: one forward and one backward of each,
    with the addition of its gradient to those of the others."""

    def case(device: str) -> Case:
        x = make(device).requires_grad_()
        with torch.no_grad():
            example = function(x)
        grads = [torch.ones_like(example)] * count

        def work() -> None:
            torch.autograd.grad([function(x) for _ in range(count)], x, grads)

        return work, count

    return case


def _matrix(device: str) -> torch.Tensor:
    return torch.randn(64, 64, device=device)


def _image(device: str) -> torch.Tensor:
    return torch.randn(2, 32, 16, 16, device=device)


def _indices(device: str) -> torch.Tensor:
    return torch.randint(0, 64, (64,), device=device)


def on(device: str, module: nn.Module) -> nn.Module:
    return module.to(device)


# -- operators that host_cases.py does not have: forward, with autograd, forward and backward ----------------------------------

OPERATORS: dict[str, tuple[Callable[[Any], Any], Callable[[str], torch.Tensor]]] = {
    "mul": (lambda x: x * 1.5, _matrix),
    "view": (lambda x: x.view(-1), _matrix),
    "permute": (lambda x: x.permute(1, 0), _matrix),
    "slice": (lambda x: x[:32], _matrix),
    "slice of the last": (lambda x: x[..., :32], _matrix),
    "select": (lambda x: x[3], _matrix),
    "new dim": (lambda x: x[None], _matrix),
    "expand": (lambda x: x[None].expand(2, 64, 64), _matrix),
    "chunk": (lambda x: x.chunk(2)[0], _matrix),
    "contiguous": (lambda x: x.transpose(0, 1).contiguous(), _matrix),
    "mean": (lambda x: x.mean(-1, keepdim=True), _matrix),
    "pow": (lambda x: x.pow(2), _matrix),
    "rsqrt": (lambda x: (x).abs().rsqrt(), _matrix),
    "add two": (lambda x: x + x, _matrix),
    "where": (lambda x: torch.where(x > 0, x, 0.0), _matrix),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), _matrix),
    "gelu": (F.gelu, _matrix),
    "softmax": (lambda x: x.softmax(-1), _matrix),
    "softmax f32 of bf16": (lambda x: x.softmax(-1, dtype=torch.float32), lambda d: _matrix(d).bfloat16()),
    "to": (lambda x: x.to(torch.bfloat16), _matrix),
    "cat": (lambda x: torch.cat((x, x)), _matrix),
    "stack": (lambda x: torch.stack((x, x)), _matrix),
    "dropout": (lambda x: F.dropout(x, 0.1), _matrix),
    "layer_norm": (lambda x: F.layer_norm(x, (64,)), _matrix),
    "group_norm": (lambda x: F.group_norm(x, 8), _image),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), _image),
    "max_pool": (lambda x: F.max_pool2d(x, 2), _image),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.0), _image),
    "pad": (lambda x: F.pad(x, (1, 1)), _image),
    "roll": (lambda x: x.roll(1, 0), _image),
    "einsum": (lambda x: torch.einsum("ab,bc->ac", x, x), _matrix),
    "index by tensor": (lambda x: x[_KEPT["indices"]], _matrix),
    "index_select": (lambda x: x.index_select(0, _KEPT["indices"]), _matrix),
    "index_add": (lambda x: x.index_add(0, _KEPT["indices"], x), _matrix),
    "gather": (lambda x: x.gather(0, _KEPT["indices"][None]), _matrix),
    "embedding": (lambda x: F.embedding(_KEPT["indices"], x), _matrix),
    "topk": (lambda x: x.topk(2, -1)[0], _matrix),
    "cumsum": (lambda x: x.cumsum(-1), _matrix),
    "cross_entropy": (lambda x: F.cross_entropy(x, _KEPT["indices"]), _matrix),
    "attention": (lambda x: F.scaled_dot_product_attention(*(x.view(1, 4, 16, 64).to(torch.bfloat16),) * 3), _matrix),
    "attention with a mask": (
        lambda x: F.scaled_dot_product_attention(*(x.view(1, 4, 16, 64).to(torch.bfloat16),) * 3, attn_mask=_KEPT["mask"]),
        _matrix,
    ),
}
_KEPT: dict[str, torch.Tensor] = {}
INTEGERS: dict[str, Callable[[Any], Any]] = {
    "sort": lambda x: x.sort(),
    "histc": lambda x: torch.histc(x.int(), 8, 0, 63),
    "one_hot": lambda x: F.one_hot(x, 64),
    "one_hot of unknown size": F.one_hot,
    "nonzero": lambda x: x.nonzero(),
    "arange": lambda x: torch.arange(64, device=x.device),
    "compare": lambda x: x > 3,
    "tolist": lambda x: x.tolist(),
    "to the host": lambda x: x.cpu(),
    "item on the host": lambda x: _KEPT["on the host"].item(),
    "random number on the host": lambda x: torch.rand([]),
    "from the host": lambda x: torch.tensor(3.0, device=x.device),
}
PARTS["operators"] = {
    **{f"{name}: forward": forward(*both_of, False) for name, both_of in OPERATORS.items()},
    **{f"{name}: forward with grad": forward(*both_of, True) for name, both_of in OPERATORS.items()},
    **{f"{name}: forward and backward": both(*both_of) for name, both_of in OPERATORS.items()},
    **{f"{name}: forward": forward(function, _indices, False) for name, function in INTEGERS.items()},
}


# -- modules, each with parameters of its own: forward, and backward into them -------------------------------------------------


def layers(make: Callable[[], nn.Module], given: Callable[[str], torch.Tensor], way: str, count: int = 30) -> Callable[[str], Case]:
    """``way``: infer, forward, both; autocast before it for bfloat16."""

    def case(device: str) -> Case:
        models = [on(device, make()) for _ in range(count)]
        x = given(device).requires_grad_()
        parameters = [p for model in models for p in model.parameters()]
        with torch.no_grad():
            example = models[0](x)

        def work() -> None:
            for parameter in parameters:
                parameter.grad = None
            with torch.autocast(device, torch.bfloat16, enabled="autocast" in way), torch.set_grad_enabled("infer" not in way):
                found = [model(x) for model in models]
            if "both" in way:
                torch.autograd.backward(found, [torch.ones_like(example, dtype=found[0].dtype)] * count)

        return work, count

    return case


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[str], torch.Tensor]]] = {
    "linear": (lambda: nn.Linear(64, 64, bias=False), _matrix),
    "linear of 3": (lambda: nn.Linear(64, 64, bias=False), lambda d: _matrix(d)[None].clone()),
    "linear with bias of 3": (lambda: nn.Linear(64, 64), lambda d: _matrix(d)[None].clone()),
    "layer norm": (lambda: nn.LayerNorm(64), _matrix),
    "convolution": (lambda: nn.Conv2d(32, 32, 3, padding=1, bias=False), _image),
    "convolution with bias": (lambda: nn.Conv2d(32, 32, 3, padding=1), _image),
    "convolution by channel": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), _image),
    "batch norm": (lambda: nn.BatchNorm2d(32), _image),
    "group norm": (lambda: nn.GroupNorm(8, 32), _image),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(64, 64)), _matrix),
    "lstm": (lambda: nn.LSTM(64, 64, 2), lambda d: torch.randn(4, 2, 64, device=d)),
}


class First(nn.Module):
    """The first of what a module gives."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        found = self.inner(x)
        return found[0] if isinstance(found, tuple) else found


PARTS["modules"] = {
    f"{name}: {way}": layers(lambda make=make: First(make()), given, way)
    for name, (make, given) in MODULES.items()
    for way in ("infer", "forward", "both", "autocast infer", "autocast both")
}


# -- layers of transformers, so small that only Python is left -----------------------------------------------------------------

SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 64,
    "num_local_experts": 4,
}
HUGGING_FACE: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaForCausalLM", SMALL, "num_hidden_layers"),
    "mixtral": ("MixtralForCausalLM", SMALL, "num_hidden_layers"),
    "bert": ("BertForMaskedLM", SMALL, "num_hidden_layers"),
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 64, "n_head": 2, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2}, "n_layer"),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 32, "d_ff": 64, "num_heads": 2, "vocab_size": 64, "decoder_start_token_id": 0},
        "num_layers",
    ),
    "bart": ("BartModel", {"d_model": 64, "vocab_size": 64, "encoder_layers": 1}, "decoder_layers"),
}


def transformers_model(name: str, num_layers: int, way: str) -> Callable[[str], Case]:
    def case(device: str) -> Case:
        import transformers

        kind, config, key = HUGGING_FACE[name]
        cls = getattr(transformers, kind)
        model = cls(cls.config_class(**config | {key: num_layers})).to(device).train()
        tokens = torch.randint(3, 60, (1, 16), device=device)
        given = {"input_ids": tokens} | ({"labels": tokens} if "For" in kind or "LM" in kind else {"decoder_input_ids": tokens})

        def work() -> None:
            with torch.autocast(device, torch.bfloat16, enabled="autocast" in way), torch.set_grad_enabled("infer" not in way):
                found = model(**given)
            if "both" in way:
                (found.loss if "labels" in given else found[0].sum()).backward()
                model.zero_grad(set_to_none=True)

        return work, 1

    return case


PARTS["transformers"] = {
    f"{name} of {count} layers: {way}": transformers_model(name, count, way)
    for name in HUGGING_FACE
    for count in (1, 5)
    for way in ("infer", "both", "autocast both")
}


# -- optimizers, scaling, looking at values ------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9),
    "rmsprop loop": lambda p: torch.optim.RMSprop(p, lr=1e-4, momentum=0.9, foreach=False),
    "sgd loop": lambda p: torch.optim.SGD(p, lr=1e-4, momentum=0.9, foreach=False),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=1e-4, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-4),
}


def _with_gradients(count: int, device: str, size: int = 1024) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.randn(size, device=device)) for _ in range(count)]
    for parameter in made:
        parameter.grad = torch.randn_like(parameter)
    return made


def optimizer(make: Callable[[Any], torch.optim.Optimizer], count: int, place: str = "", size: int = 1024) -> Callable[[str], Case]:
    def case(device: str) -> Case:
        stepper = make(_with_gradients(count, place or device, size))
        stepper.step()
        return stepper.step, 1

    return case


def scaled(count: int) -> Callable[[str], Case]:
    def case(device: str) -> Case:
        stepper, scaler = torch.optim.AdamW(_with_gradients(count, device), lr=1e-4), torch.amp.GradScaler(device)
        scaler.scale(torch.ones((), device=device))
        stepper.step()

        def work() -> None:
            scaler.step(stepper)
            scaler.update()

        return work, 1

    return case


def zeroing(count: int) -> Callable[[str], Case]:
    def case(device: str) -> Case:
        stepper = torch.optim.AdamW(_with_gradients(count, device), lr=1e-4)
        return repeated(stepper.zero_grad, 20)

    return case


ADAMW = {"adamw": lambda p: torch.optim.AdamW(p, lr=1e-4), "adamw fused": lambda p: torch.optim.AdamW(p, lr=1e-4, fused=True)}
PARTS["optimizers"] = {
    **{f"{name}, {n} parameters": optimizer(make, n) for name, make in OPTIMIZERS.items() for n in (10, 150)},
    **{f"step and update of a scaler over adamw, {n} parameters": scaled(n) for n in (10, 150)},
    **{f"zero_grad, {n} parameters": zeroing(n) for n in (10, 150)},
    **{
        f"{name} on the host, {n} parameters of 2**{exponent}": optimizer(make, n, "cpu", 2**exponent)
        for name, make in ADAMW.items()
        for n, exponent in ((10, 18), (50, 18), (50, 14), (10, 22))
    },
}


# -- a policy that is asked about every operator -------------------------------------------------------------------------------


def checkpointed(way: str, count: int = 40, repeats: int = 5) -> Callable[[str], Case]:
    """Operators of a chain that is computed again; ``way``: none, plain, policy."""

    def case(device: str) -> Case:
        x = torch.randn(64, 64, device=device, requires_grad=True)

        def chain(y: Any) -> Any:
            for _ in range(count):
                y = y * 1.5
            return y

        def contexts() -> Any:
            return create_selective_checkpoint_contexts(lambda *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE)

        def work() -> None:
            y: Any = x
            for _ in range(repeats):
                if way == "none":
                    y = chain(y)
                elif way == "plain":
                    y = checkpoint(chain, y, use_reentrant=False)
                else:
                    y = checkpoint(chain, y, use_reentrant=False, context_fn=contexts)
            torch.autograd.grad(y, x, torch.ones_like(x))

        return work, count * repeats

    return case


PARTS["policies"] = {f"an operator, checkpointed with {way}": checkpointed(way) for way in ("none", "plain", "policy")}


# -- hooks on what is saved, on modules and on gradients; what looks at values; tokens one by one --------------------------------


def hooked(way: str, size: int = 64, count: int = 40) -> Callable[[str], Case]:
    """A chain of products whose results are saved; ``way``: none, identity, pinned, pageable."""

    def case(device: str) -> Case:
        x = torch.randn(size, size, device=device, requires_grad=True)
        around = {
            "none": contextlib.nullcontext,
            "identity": lambda: torch.autograd.graph.saved_tensors_hooks(lambda y: y, lambda y: y),
            "pinned": lambda: torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda", device_type=device),
            "pageable": lambda: torch.autograd.graph.save_on_cpu(device_type=device),
        }

        def work() -> None:
            y = x
            with around[way]():
                for _ in range(count):
                    y = y.sin()
            torch.autograd.grad(y, x, torch.ones_like(x))

        return work, count

    return case


def decoded(kind: str, config: dict[str, Any], tokens: int, how: str) -> Callable[[str], Case]:
    """``how``: generate, or forward with what is cached."""

    def case(device: str) -> Case:
        import transformers

        cls = getattr(transformers, kind)
        model = cls(cls.config_class(**config)).to(device).eval()
        given = torch.randint(3, 60, (1, 16), device=device)

        def work() -> None:
            with torch.no_grad():
                if how == "generate":
                    model.generate(
                        given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False
                    )
                else:
                    past = model(given, use_cache=True).past_key_values
                    for _ in range(tokens - 1):
                        past = model(given[:, -1:], past_key_values=past, use_cache=True).past_key_values

        return work, tokens

    return case


TINY = SMALL | {"num_hidden_layers": 2, "pad_token_id": 0, "eos_token_id": None}
PARTS["hooks"] = {
    **{
        f"sin, saved with {way}, {n} by {n}": hooked(way, n)
        for way in ("none", "identity", "pinned", "pageable")
        for n in (64, 1024)
    },
    **{f"a token of llama: {how}": decoded("LlamaForCausalLM", TINY, 12, how) for how in ("generate", "forward")},
    **{
        f"a token of llama of 8 layers: {how}": decoded("LlamaForCausalLM", TINY | {"num_hidden_layers": 8}, 12, how)
        for how in ("generate", "forward")
    },
    "where(mask)": forward(lambda x: torch.where(x == 3), _indices, False),
    "index by mask": forward(lambda x: x[x == 3], _indices, False),
    "x.T": forward(lambda x: x.T, _matrix, False),
    "x @ x.T": forward(lambda x: x @ x.T, _matrix, False),
}


# -- distributed tensors -------------------------------------------------------------------------------------------------------


def distributed(device: str, shape: tuple[int, ...], placement: Any, mesh_shape: tuple[int, ...] = (8,)) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    begin_world()
    mesh = init_device_mesh(device, mesh_shape)
    return distribute_tensor(torch.randn(shape, device=device), mesh, [placement] * len(mesh_shape))


def _shard(device: str) -> Any:
    from torch.distributed.tensor import Shard

    return distributed(device, (64, 64), Shard(0))


def _shard_2d(device: str) -> Any:
    from torch.distributed.tensor import Shard

    return distributed(device, (64, 64), Shard(0), (4, 2))


def _replicate(device: str) -> Any:
    from torch.distributed.tensor import Replicate

    return distributed(device, (64, 64), Replicate())


def _to_replicate(x: Any) -> Any:
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate()])


DISTRIBUTED: dict[str, tuple[Callable[[Any], Any], Callable[[str], Any]]] = {
    "mul": (lambda x: x * 1.5, _shard),
    "mul on a mesh of two": (lambda x: x * 1.5, _shard_2d),
    "add two": (lambda x: x + x, _shard),
    "view": (lambda x: x.view(64, 8, 8), _shard),
    "transpose": (lambda x: x.transpose(0, 1), _shard),
    "mm": (lambda x: torch.mm(x, x), _replicate),
    "mm of shards": (lambda x: torch.mm(x, x.transpose(0, 1)), _shard),
    "to": (lambda x: x.to(torch.bfloat16), _shard),
    "to_local": (lambda x: x.to_local(), _shard),
    "redistribute": (_to_replicate, _shard),
}
PARTS["distributed"] = {
    **{f"distributed {name}: forward": forward(*pair, False) for name, pair in DISTRIBUTED.items()},
    **{f"distributed {name}: forward with grad": forward(*pair, True) for name, pair in DISTRIBUTED.items()},
    **{f"distributed {name}: forward and backward": both(*pair, 20) for name, pair in DISTRIBUTED.items()},
}


def parallel_layers(style: str, way: str, count: int = 12) -> Callable[[str], Case]:
    def case(device: str) -> Case:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        begin_world()
        mesh = init_device_mesh(device, (8,))
        models = [on(device, nn.Linear(64, 64, bias=False)) for _ in range(count)]
        if style != "plain":
            for model in models:
                parallelize_module(model, mesh, ColwiseParallel() if style == "colwise" else RowwiseParallel())
        x = torch.randn(2, 16, 8 if style == "rowwise" else 64, device=device, requires_grad=True)

        def work() -> None:
            with torch.autocast(device, torch.bfloat16, enabled="autocast" in way), torch.set_grad_enabled("infer" not in way):
                found = [model(x) for model in models]
            if "both" in way:
                torch.autograd.backward([y.sum() for y in found])
                for model in models:
                    model.weight.grad = None

        return work, count

    return case


PARTS["distributed"] |= {
    f"{style} linear: {way}": parallel_layers(style, way)
    for style in ("plain", "colwise", "rowwise")
    for way in ("infer", "forward", "both", "autocast infer", "autocast both")
}


def offloaded_layers(num_layers: int, num_parameters: int, offload: bool, with_step: bool) -> Callable[[str], Case]:
    """Layers of FSDP2 whose shards lie on the host."""

    def case(device: str) -> Case:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        from benchmarks.timing.host_cases import Layer

        begin_world()
        mesh = init_device_mesh(device, (8,))
        policy = CPUOffloadPolicy() if offload else OffloadPolicy()
        model: Any = nn.Sequential(*(Layer(num_parameters) for _ in range(num_layers))).to("cpu" if offload else device)
        for layer in model:
            fully_shard(layer, mesh=mesh, offload_policy=policy)
        fully_shard(model, mesh=mesh, offload_policy=policy)
        stepper = torch.optim.AdamW(model.parameters(), lr=1e-4)
        x = torch.randn(64, 64, device=device)

        def work() -> None:
            model(x).sum().backward()
            if with_step:
                stepper.step()
            stepper.zero_grad()

        return work, 1

    return case


PARTS["distributed"] |= {
    f"fsdp2{' offloaded' if offload else ''}{' with adamw' if step else ''}, {sizes[0]} layers of {sizes[1]} parameters": (
        offloaded_layers(*sizes, offload, step)
    )
    for offload in (False, True)
    for step in (False, True)
    for sizes in ((4, 1), (12, 1), (12, 9))
}


# -- a step of many kinds: how much slower than its operators in loops of their own --------------------------------------------


def mixed(way: str) -> Callable[[str], Case]:
    """Each of the operators above once, in turn, thirty times; ``way``: infer, forward, both."""

    def case(device: str) -> Case:
        names = [name for name in OPERATORS if name not in ("index_add", "where", "masked_fill", "attention with a mask")]
        given = {name: OPERATORS[name][1](device).requires_grad_("infer" not in way) for name in names}
        with torch.no_grad():
            grads = [torch.ones_like(OPERATORS[name][0](given[name])) for name in names]

        def work() -> None:
            for _ in range(5):
                found = [OPERATORS[name][0](given[name]) for name in names]
                if way == "both":
                    torch.autograd.grad(found, list(given.values()), grads)

        return work, 5

    return case


PARTS["mixed"] = {f"all operators in turn: {way}": mixed(way) for way in ("infer", "forward", "both")}


def measure(path: pathlib.Path, parts: list[str]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    _KEPT["indices"] = _indices(device)
    _KEPT["mask"] = torch.zeros(1, 4, 16, 16, device=device, dtype=torch.bfloat16)
    _KEPT["on the host"] = torch.tensor(3.0)
    reference = {name: KNOWN[name] for name in REFERENCE}
    began = time.perf_counter()
    for part, cases in {"first": reference, **{name: PARTS[name] for name in parts or PARTS}, "last": reference}.items():
        known = found.setdefault(part, {})
        for name, make in cases.items():
            try:
                known[name] = round(microseconds(*make(device), device, 0.08), 2)
            except Exception as error:
                known[name] = f"{type(error).__name__}: {error}"[:200]
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(part, round(time.perf_counter() - began, 1), flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    measure(pathlib.Path(sys.argv[1]), sys.argv[2:])
