"""Megatron-core: a T5 of its local layers with the distributed optimizer, encoders recomputed, several micro-batches a step."""

import os

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.models.T5.t5_spec import get_t5_decoder_with_local_block_spec, get_t5_encoder_with_local_block_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

LAYERS, WORDS, LONG, SHORT, BATCH = 8, 32_128, 512, 128, 8

torch.distributed.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
parallel_state.initialize_model_parallel()
model_parallel_cuda_manual_seed(123)
config = TransformerConfig(
    num_layers=LAYERS,
    hidden_size=1024,
    num_attention_heads=16,
    kv_channels=64,
    ffn_hidden_size=3072,
    bf16=True,
    params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16,
    attention_dropout=0.1,
    hidden_dropout=0.1,
    recompute_granularity="full",
    recompute_method="block",
    recompute_num_layers=3,
)
inner = T5Model(
    config=config,
    encoder_config=config,
    transformer_encoder_layer_spec=get_t5_encoder_with_local_block_spec(LAYERS),
    transformer_decoder_layer_spec=get_t5_decoder_with_local_block_spec(LAYERS),
    vocab_size=WORDS,
    max_sequence_length=LONG,
    share_embeddings_and_output_weights=True,
)
half = Float16Module(config, inner.cuda())
half.model_type = ModelType.encoder_or_decoder
model = DistributedDataParallel(
    config, DistributedDataParallelConfig(use_distributed_optimizer=True, overlap_grad_reduce=True, bucket_size=20_000_000), half
)
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), [model]
)
config.finalize_model_grads_func, config.no_sync_func, config.grad_scale_func = (
    finalize_model_grads,
    model.no_sync,
    optimizer.scale_loss,
)
schedule = get_forward_backward_func()


def forward(batches: object, model: torch.nn.Module) -> tuple:
    long, short = (torch.randint(WORDS, (BATCH, length)).cuda() for length in (LONG, SHORT))
    among_long = torch.zeros(BATCH, 1, LONG, LONG, dtype=torch.bool, device="cuda")
    among_short = torch.ones(SHORT, SHORT, dtype=torch.bool, device="cuda").triu(1)[None, None].expand(BATCH, 1, -1, -1)
    across = torch.zeros(BATCH, 1, SHORT, LONG, dtype=torch.bool, device="cuda")
    losses = model(long, short, among_long, among_short, across, lm_labels=short)
    return losses, lambda found: (found.float().mean(), {"loss": found.detach().float().mean()})


for step in range(4):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    said = schedule(
        forward_step_func=forward,
        data_iterator=iter(()),
        model=[model],
        num_microbatches=3,
        seq_length=LONG,
        micro_batch_size=BATCH,
        decoder_seq_length=SHORT,
        forward_only=False,
    )
    optimizer.step()
    print(step, [row["loss"].item() for row in said])
torch.distributed.destroy_process_group()
