"""A small mixture of experts of Hugging Face's on batches of many lengths, with the loss that balances its experts, and generation
at the end."""

import torch
from common import Text, pad
from transformers import MixtralConfig, MixtralForCausalLM

torch.manual_seed(3)
model = MixtralForCausalLM(
    MixtralConfig(
        vocab_size=24000,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        num_local_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=4096,
        output_router_logits=True,
        use_cache=False,
    )
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loader = torch.utils.data.DataLoader(
    Text(480, seed=21, vocab=24000, mean=5.4, top=1200), batch_size=6, collate_fn=pad, shuffle=True
)
for rows in loader:
    rows = {name: part.cuda() for name, part in rows.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**rows).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
model.eval()
model.config.output_router_logits = False  # its loss is for training alone
with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
    prompts = torch.randint(3, 24000, (8, 100), device="cuda")
    words = model.generate(prompts, max_new_tokens=60, min_new_tokens=60, do_sample=False, use_cache=True)
print(loss.item(), words.shape)
