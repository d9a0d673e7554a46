"""Training steps of the rows that are not whole scripts, written as their sources write them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pathlib
import re
from collections.abc import Callable
from typing import Any

from benchmarks.published.mpt import build as build_mpt


def checkout(of: str, path: str) -> pathlib.Path:
    """A file of a checkout. Raises ``LookupError`` where there is none."""
    place = pathlib.Path(os.environ.get("PUBLISHED_CHECKOUTS", "checkouts")) / of
    if not place.exists():
        raise LookupError(f"needs a checkout of {of} in the folder of --checkouts")
    return place / path


def build_timm(model: str, batch: int, size: int, channels_last: bool) -> Any:
    import torch
    import torch.nn.functional as F

    os.environ["TIMM_FUSED_ATTN"] = "0"  # timm 0.6.6 wrote attention out
    # Of torchvision timm needs no kernel; those that a CPU build lacks are only named, so that it can be imported.
    arguments = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
    for name in ("nms", "qnms"):
        with contextlib.suppress(RuntimeError):
            torch.library.define(f"torchvision::{name}", arguments)
    import timm

    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if channels_last else torch.contiguous_format
    made = timm.create_model(model, num_classes=1000).to("cuda", memory_format=layout).train()
    optimizer = torch.optim.SGD(made.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False)
    images = torch.randn(batch, 3, size, size, device="cuda").contiguous(memory_format=layout)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)  # the default of torch 1.12
        with torch.autocast("cuda", torch.float16):
            out = made(images)
            out = out[0] if isinstance(out, tuple) else out
            classes = torch.empty(len(out), device="cuda", dtype=torch.long).random_(1000)
            F.cross_entropy(out, classes).backward()
        optimizer.step()
        torch.cuda.synchronize()

    return step


def build_bert(batch: int, accumulate: int, checkpointing: bool, optimizer: str, half: bool) -> Any:
    """bert-large for classification with HF's Trainer of 2022: sequences of 512, AdamW in a loop over tensors."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    config._attn_implementation = "eager"
    model = BertForSequenceClassification(config).cuda().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    if optimizer == "adamw8bit":
        import bitsandbytes

        stepper = bitsandbytes.optim.Adam8bit(model.parameters())
    elif optimizer == "adafactor":
        from transformers.optimization import Adafactor

        stepper = Adafactor(model.parameters(), scale_parameter=False, relative_step=False, lr=1e-4)
    else:
        stepper = torch.optim.AdamW(model.parameters(), foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=half)

    def step() -> None:
        for _ in range(accumulate):
            ids = torch.randint(0, 30522, (batch, 512), device="cuda")
            with torch.autocast("cuda", torch.float16) if half else contextlib.nullcontext():
                loss = model(input_ids=ids, labels=torch.zeros(batch, dtype=torch.long, device="cuda")).loss
            scaler.scale(loss).backward()
        scaler.step(stepper)
        scaler.update()
        stepper.zero_grad()

    return step


LLAMA_3B = {
    "vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
    "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip


def build_peft(path: str, lengths: list[int], batch: int) -> Any:
    """As method_comparison/MetaMathQA/run.py trains; settings are those that the result's own file names."""
    import peft
    import torch
    from peft.optimizers import create_lorafa_optimizer, create_loraplus_optimizer, create_riemannian_optimizer
    from transformers import LlamaConfig, LlamaForCausalLM

    ran = json.loads(checkout("peft", path).read_text())["run_info"]
    settings, method = ran["train_config"], ran["peft_config"]
    torch.nn.Linear(1, 1).to("cuda")
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(
            LlamaConfig(**LLAMA_3B, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
        )
        torch.set_default_dtype(torch.float32)
    if method:
        known = {key: value for key, value in method.items() if key not in ("auto_mapping", "peft_version")}
        config = peft.PeftConfig.from_peft_type(**known)
        model = peft.get_peft_model(model, config, autocast_adapter_dtype=settings["autocast_adapter_dtype"])
    model.train()
    makers: dict[str, Callable[..., Any]] = {
        "lora-fa": create_lorafa_optimizer,
        "lora+": lambda *parts, **words: create_loraplus_optimizer(*parts, optimizer_cls=torch.optim.AdamW, **words),
        "riemannian": lambda *parts, **words: create_riemannian_optimizer(*parts, optimizer_cls=torch.optim.AdamW, **words),
    }
    if (kind := settings["optimizer_type"]) in makers:
        optimizer = makers[kind](model, **settings["optimizer_kwargs"])
    else:
        optimizer = getattr(torch.optim, kind)(model.parameters(), **settings["optimizer_kwargs"])
    if method:
        with (
            model.disable_adapter()
        ):  # run.py's first look at the loss; afterwards all adapters are trained, frozen ones among them
            pass
    to_come, numbers = iter(lengths), itertools.count(1)

    def step() -> None:
        if (length := next(to_come)) == 0:
            torch.cuda.empty_cache()
            length = next(to_come)
        ids = torch.randint(0, 128000, (batch, length), device="cuda")
        mask = torch.ones(batch, length, dtype=torch.long, device="cuda")
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.clone(), num_items_in_batch=batch * length).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings["grad_norm_clip"])
        optimizer.step()
        if hasattr(getattr(model, "base_model", None), "update_and_allocate"):
            model.base_model.update_and_allocate(next(numbers))
        loss.item()

    return step


def build_trainer(
    shape: str, batch: int, seq: int, lora: bool, four_bit: bool, half: str, sharded: bool, autocast: str = ""
) -> Any:
    """HF's trainer around a causal model as fms-acceleration sets it: FlashAttention 2, checkpointing, AdamW in a list, FSDP on two
    GPUs and more."""
    import torch
    import transformers
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    from benchmarks.published.fms import SHAPES

    sizes, dtype = SHAPES[shape], getattr(torch, half)
    config = transformers.AutoConfig.for_model(
        sizes["kind"], vocab_size=sizes["vocab"], hidden_size=sizes["hidden"], intermediate_size=sizes["ffn"],
        num_hidden_layers=sizes["layers"], num_attention_heads=sizes["heads"], num_key_value_heads=sizes["kv"],
        max_position_embeddings=8192, sliding_window=None, use_cache=False,
    )  # fmt: skip
    config._attn_implementation = "flash_attention_2"
    if sharded:
        torch.distributed.init_process_group("nccl")
    with torch.device("meta" if sharded else "cuda"):
        torch.set_default_dtype(dtype)
        model = transformers.AutoModelForCausalLM.from_config(config)
        torch.set_default_dtype(torch.float32)
    if lora:
        import peft

        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
        if four_bit:
            _quantize(model)
            model.is_loaded_in_4bit = True
            model = peft.prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": True})
        model = peft.get_peft_model(
            model,
            peft.LoraConfig(r=16, lora_alpha=16, lora_dropout=0.1, target_modules=targets),
            autocast_adapter_dtype=not sharded,
        )
        model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": lora})
    model.train()
    if sharded:
        blocks = {type(model.get_decoder().layers[0])}
        model = FullyShardedDataParallel(
            model,  # in its half type: scripts/benchmarks/accelerate.yaml has no mixed precision
            auto_wrap_policy=ModuleWrapPolicy(blocks),
            use_orig_params=lora,
            param_init_fn=lambda module: module.to_empty(device="cuda", recurse=False),
            limit_all_gathers=True,
        )
    if autocast:
        from accelerate.utils.operations import convert_outputs_to_fp32

        model.forward = convert_outputs_to_fp32(torch.autocast("cuda", getattr(torch, autocast))(model.forward))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-5)

    def step() -> None:
        ids = torch.randint(0, 1000, (batch, seq), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _quantize(model: Any) -> None:
    """Every linear layer but the head in four bits, as transformers does it with bitsandbytes."""
    import torch
    from bitsandbytes.nn import Linear4bit

    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and name != "lm_head":
                words = {"bias": child.bias is not None, "compute_dtype": torch.bfloat16, "quant_type": "nf4"}
                setattr(parent, name, Linear4bit(child.in_features, child.out_features, **words).to("cuda"))


_LORA = ("lora_r", "lora_alpha", "lora_dropout", "lora_query", "lora_key", "lora_value", "lora_projection", "lora_mlp", "lora_head")


def _litgpt_words(config: str) -> dict[str, Any]:
    """What a YAML of litgpt's config_hub says; the longest sample is cut to its max_seq_length."""
    there = {path.as_posix().lower(): path for path in checkout("litgpt", "config_hub/finetune").glob("*/*.yaml")}
    text = next(path for name, path in there.items() if name.endswith(f"/{config.lower()}")).read_text()
    said = {key: value.strip() for key, value in re.findall(r"^ *(\w+): *([^#\n]*)", text, re.MULTILINE)}
    plain: dict[str, Any] = {"true": True, "false": False}
    lora = {key: plain.get(said[key], float(said[key]) if said[key][0].isdigit() else None) for key in _LORA if key in said}
    if "lora_r" in lora:
        lora["lora_r"] = int(lora["lora_r"])
    batch = int(said["micro_batch_size"])
    return {
        "name": said["checkpoint_dir"].rpartition("/")[2],
        "batch": batch,
        "seq": int(said["max_seq_length"]),
        "lora": lora,
        "quantize": said.get("quantize", ""),
        "accumulate": min(2, max(1, int(said["global_batch_size"]) // batch)),
    }


def build_litgpt(
    config: str = "", name: str = "", batch: int = 1, seq: int = 0, lora: Any = None, quantize: str = "", accumulate: int = 1
) -> Any:
    """litgpt's finetuning: its own model code in bfloat16, its chunked loss, AdamW for what is trained."""
    if config:
        return build_litgpt(**_litgpt_words(config))
    import torch
    from litgpt.lora import GPT, mark_only_lora_as_trainable
    from litgpt.lora import Config as Sizes
    from litgpt.model import GPT as WHOLE
    from litgpt.utils import chunked_cross_entropy

    sizes = Sizes.from_name(name, **(lora or {}))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = GPT(sizes) if lora else WHOLE(sizes)
    torch.set_default_dtype(torch.float32)
    if lora:
        mark_only_lora_as_trainable(model)
    if quantize:
        _quantize(model)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)

    def step() -> None:
        for _ in range(accumulate):
            ids = torch.randint(0, 1000, (batch, seq), device="cuda")
            if lora:
                logits = model(ids, lm_head_chunk_size=128)
                logits[-1] = logits[-1][..., :-1, :]
                loss = chunked_cross_entropy(logits, ids[..., 1:])
            else:
                loss = chunked_cross_entropy(model(ids)[..., :-1, :], ids[..., 1:])
            (loss / accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


BUILDS: dict[str, Callable[..., Any]] = {
    "mpt": build_mpt,
    "timm": build_timm,
    "bert": build_bert,
    "peft": build_peft,
    "trainer": build_trainer,
    "litgpt": build_litgpt,
}
