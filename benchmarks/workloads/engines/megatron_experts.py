"""Megatron-core: a GPT with shared keys and experts of fixed capacity, a shared expert beside them."""

import os

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig

WORDS, LENGTH, BATCH = 32_000, 1024, 2

torch.distributed.init_process_group("nccl", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
parallel_state.initialize_model_parallel()
model_parallel_cuda_manual_seed(123)
config = TransformerConfig(
    num_layers=6,
    hidden_size=1024,
    num_attention_heads=16,
    ffn_hidden_size=4096,
    num_query_groups=4,
    qk_layernorm=True,
    normalization="RMSNorm",
    add_bias_linear=False,
    gated_linear_unit=True,
    activation_func=torch.nn.functional.silu,
    bias_activation_fusion=False,
    num_moe_experts=8,
    moe_router_topk=2,
    moe_ffn_hidden_size=1408,
    moe_shared_expert_intermediate_size=1408,
    moe_layer_freq=[0, 1, 1, 1, 1, 1],
    moe_router_load_balancing_type="aux_loss",
    moe_aux_loss_coeff=1e-2,
    moe_expert_capacity_factor=1.0,
    moe_pad_expert_input_to_capacity=True,
    bf16=True,
    params_dtype=torch.bfloat16,
    pipeline_dtype=torch.bfloat16,
    attention_dropout=0.0,
    hidden_dropout=0.0,
)
inner = GPTModel(
    config=config,
    transformer_layer_spec=get_gpt_decoder_block_spec(config, use_transformer_engine=False),
    vocab_size=WORDS,
    max_sequence_length=LENGTH,
    position_embedding_type="rope",
    share_embeddings_and_output_weights=False,
)
half = Float16Module(config, inner.cuda())
half.model_type = ModelType.encoder_or_decoder
model = DistributedDataParallel(
    config, DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True), half
)
optimizer = get_megatron_optimizer(
    OptimizerConfig(optimizer="adam", lr=1e-4, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True), [model]
)
config.finalize_model_grads_func, config.grad_scale_func = finalize_model_grads, optimizer.scale_loss
schedule = get_forward_backward_func()
places = torch.arange(LENGTH, device="cuda")[None].expand(BATCH, -1)
mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool, device="cuda").triu(1)


def forward(batches: object, model: torch.nn.Module) -> tuple:
    tokens = torch.randint(WORDS, (BATCH, LENGTH)).cuda()
    losses = model(tokens, places, mask, labels=tokens)
    return losses, lambda found: (found.float().mean(), {"loss": found.detach().float().mean()})


for step in range(4):
    model.zero_grad_buffer()
    optimizer.zero_grad()
    said = schedule(
        forward_step_func=forward,
        data_iterator=iter(()),
        model=[model],
        num_microbatches=2,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    optimizer.step()
    print(step, [row["loss"].item() for row in said])
torch.distributed.destroy_process_group()
