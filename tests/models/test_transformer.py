"""The reference transformer computes what the published architectures compute."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers
from helpers.tiny_models import TINY, TINY_DEEPSEEK, TINY_GPT2, TINY_MOE

from memfit.models.transformer import Transformer

OURS_TO_THEIRS = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}


def their_name(ours: str) -> str:
    path, _, leaf = ours.rpartition(".")
    if path.startswith("blocks."):
        _, number, inner = path.split(".", 2)
        return f"model.layers.{number}.{OURS_TO_THEIRS[inner]}.{leaf}"
    return f"{OURS_TO_THEIRS[path]}.{leaf}"


def test_qwen3s_logits():
    made = transformers.Qwen3Config(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=96,
        vocab_size=512,
        tie_word_embeddings=False,
        pad_token_id=None,
    )
    made.rope_parameters = {"rope_type": "default", "rope_theta": TINY.rope_theta}
    theirs, ours = transformers.Qwen3ForCausalLM(made), Transformer(TINY)
    weights = theirs.state_dict()
    ours.load_state_dict({name: weights[their_name(name)] for name in ours.state_dict()})
    tokens = torch.randint(0, 512, (2, 32))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


def test_gpt2s_logits():
    made = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=512, n_positions=128)
    theirs, ours = transformers.GPT2LMHeadModel(made).eval(), Transformer(TINY_GPT2).eval()
    body = theirs.transformer
    with torch.no_grad():
        ours.embedding.weight.copy_(body.wte.weight)
        ours.positions.weight.copy_(body.wpe.weight)
        ours.norm.load_state_dict(body.ln_f.state_dict())
        for mine, block in zip(ours.blocks, body.h, strict=True):
            mine.attention_norm.load_state_dict(block.ln_1.state_dict())
            mine.mlp_norm.load_state_dict(block.ln_2.state_dict())
            for layer, weight, bias in zip(
                (mine.attention.query, mine.attention.key, mine.attention.value),
                block.attn.c_attn.weight.chunk(3, dim=1),
                block.attn.c_attn.bias.chunk(3),
                strict=True,
            ):
                layer.weight.copy_(weight.T)
                layer.bias.copy_(bias)
            for layer, conv in (
                (mine.attention.output, block.attn.c_proj),
                (mine.mlp.up, block.mlp.c_fc),
                (mine.mlp.down, block.mlp.c_proj),
            ):
                layer.weight.copy_(conv.weight.T)
                layer.bias.copy_(conv.bias)
    tokens = torch.randint(0, 512, (2, 32))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


def test_experts_are_each_tokens_own():
    """Token by token, expert by expert, as the words have it."""
    mlp = Transformer(TINY_MOE).blocks[0].mlp
    x = torch.randn(2, 5, 64)
    rows = []
    for token in x.flatten(0, 1):
        weights, chosen = mlp.router(token).softmax(-1).topk(2)
        weights = weights / weights.sum()
        row = torch.zeros(64)
        for weight, expert in zip(weights, chosen.tolist(), strict=True):
            gate, up = (token @ mlp.routed.gate_and_up[expert]).chunk(2)
            row = row + weight * ((F.silu(gate) * up) @ mlp.routed.down[expert])
        rows.append(row)
    torch.testing.assert_close(mlp(x), torch.stack(rows).view_as(x), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "config", [TINY, TINY_GPT2, TINY_MOE, TINY_DEEPSEEK, replace(TINY, qkv_bias=True, tied=True)], ids=lambda config: config.name
)
def test_it_learns(config):
    torch.manual_seed(0)
    model = Transformer(replace(config, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = torch.randint(0, 512, (2, 17))
    losses = []
    for _ in range(6):
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.8 * losses[0]
