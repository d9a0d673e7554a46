"""Models small enough to build many times."""

from memfit.models import ModelConfig
from memfit.models.config import Latent

TINY = ModelConfig(
    name="tiny", dim=64, layers=3, heads=4, kv_heads=2, hidden=96, vocab=512, context=128, qk_norm=True, source="made for tests"
)
TINY_GPT2 = ModelConfig(
    name="tiny-gpt2",
    dim=64,
    layers=2,
    heads=4,
    kv_heads=4,
    hidden=256,
    vocab=512,
    context=128,
    gpt2=True,
    tied=True,
    dropout=0.1,
    source="made for tests",
)
TINY_MOE = ModelConfig(
    name="tiny-moe",
    dim=64,
    layers=2,
    heads=4,
    kv_heads=2,
    hidden=32,
    vocab=512,
    context=128,
    num_experts=8,
    experts_per_token=2,
    source="made for tests",
)
TINY_DEEPSEEK = ModelConfig(
    name="tiny-deepseek",
    dim=64,
    layers=2,
    heads=4,
    kv_heads=4,
    hidden=32,
    vocab=512,
    context=128,
    latent=Latent(kv_rank=16, query_rank=24, plain_dim=16, turned_dim=8, value_dim=16),
    num_experts=8,
    experts_per_token=2,
    shared_experts=1,
    dense_layers=1,
    dense_hidden=96,
    sigmoid_router=True,
    source="made for tests",
)
