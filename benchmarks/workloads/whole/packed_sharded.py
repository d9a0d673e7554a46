"""FSDP2 on one rank: documents packed to rows with a mask of their own, accumulated without reduction, saved whole twice,
evaluated."""

import os
import tempfile

import torch
import torch.distributed as dist
from shared import Sentences
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29611")
dist.init_process_group("nccl", rank=0, world_size=1)
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=48000,
    hidden_size=896,
    intermediate_size=2688,
    num_hidden_layers=8,
    num_attention_heads=14,
    num_key_value_heads=2,
    head_dim=64,
)
config._attn_implementation = "sdpa"
model = Qwen3ForCausalLM(config).cuda()
model.gradient_checkpointing_enable()
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=policy)
fully_shard(model, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
documents, LENGTH = Sentences(1200, 21, vocab=48000), 2048


def rows():
    words, places = [], []
    for number in torch.randperm(len(documents), generator=torch.Generator().manual_seed(3)).tolist():
        document = documents[number]
        words.append(document)
        places.append(torch.arange(len(document)))
        if sum(map(len, words)) >= LENGTH:
            yield torch.cat(words)[:LENGTH], torch.cat(places)[:LENGTH]
            words, places = [], []


def batches(size):
    kept = []
    for row in rows():
        kept.append(row)
        if len(kept) == size:
            yield tuple(torch.stack(part).cuda() for part in zip(*kept, strict=True))
            kept = []


for number, (words, places) in enumerate(batches(2)):
    last = number % 4 == 3
    model.set_requires_gradient_sync(last)
    inside = (places.cumsum(1) >= 0) & (places >= 0)
    starts = (places == 0).cumsum(1)
    mask = (starts[:, :, None] == starts[:, None, :]).tril()[:, None] & inside[:, None, None, :]
    loss = model(input_ids=words, attention_mask=mask, position_ids=places, labels=words, use_cache=False).loss / 4
    loss.backward()
    if last:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if number in (23, 47):
        weights, states = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        torch.save({"model": weights, "optimizer": states}, os.path.join(tempfile.mkdtemp(), "whole.pt"))
        del weights, states
model.eval()
with torch.no_grad():
    for number, (words, places) in enumerate(batches(4)):
        model(input_ids=words, position_ids=places, use_cache=False)
        if number == 3:
            break
dist.destroy_process_group()
