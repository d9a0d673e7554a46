"""Llama-3 8B with FSDP2, an epoch of 2,000 batches of many lengths: torchrun --nproc-per-node 8 llama3_8b_epoch.py."""

import torch
import torch.distributed as dist
from common import Text, pad
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from transformers import LlamaConfig, LlamaForCausalLM

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
config = LlamaConfig(
    hidden_size=4096,
    intermediate_size=14336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    vocab_size=128256,
    max_position_embeddings=8192,
    use_cache=False,
)
with torch.device("meta"):
    model = LlamaForCausalLM(config)
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model.model.layers:
    fully_shard(layer, mp_policy=precision)
fully_shard(model, mp_policy=precision)
model.to_empty(device="cuda")
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)
data = Text(2000 * 2 * dist.get_world_size(), vocab=128256, top=4000)
loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data), collate_fn=pad)
for batch in loader:
    batch = {name: value.cuda() for name, value in batch.items()}
    model(**batch).loss.backward()
    opt.step()
    opt.zero_grad()
