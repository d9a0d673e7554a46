"""flash-linear-attention: a language model of gated linear attention, whose kernels are Triton's, with its fused loss."""

import torch
from fla.models import GLAConfig, GLAForCausalLM

torch.manual_seed(0)
config = GLAConfig(
    hidden_size=1024,
    num_hidden_layers=8,
    num_heads=8,
    vocab_size=32_000,
    use_cache=False,
    fuse_cross_entropy=True,
)
model = GLAForCausalLM(config).cuda().bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(5):
    tokens = torch.randint(32_000, (4, 1024)).cuda()
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
