"""litgpt: low-rank adapters of a Pythia and of a Gemma in turn, with Fabric in mixed precision, and a validation of each."""

import lightning as L
import torch
from litgpt.lora import GPT, Config, lora_filter, mark_only_lora_as_trainable
from litgpt.utils import chunked_cross_entropy

ADAPTERS = {"lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "lora_query": True, "lora_value": True, "lora_mlp": True}
fabric = L.Fabric(devices=1, precision="bf16-mixed")
fabric.seed_everything(0)
for name, length in (("pythia-410m", 1024), ("Gemma-2-2b", 512)):
    config = Config.from_name(name, n_layer=6, padded_vocab_size=50_304, **ADAPTERS)
    with fabric.init_module(empty_init=False):
        model = GPT(config)
    mark_only_lora_as_trainable(model)
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3))
    model.train()
    for step in range(4):
        tokens = torch.randint(50_000, (4, length - 100 * (step % 3)), device=fabric.device)
        with fabric.no_backward_sync(model, enabled=step % 2 == 0):
            logits = model(tokens, lm_head_chunk_size=128)
            logits[-1] = logits[-1][..., :-1, :]
            loss = chunked_cross_entropy(logits, tokens[..., 1:])
            fabric.backward(loss / 2)
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses = torch.zeros(2)
        for step in range(2):
            tokens = torch.randint(50_000, (4, length), device=fabric.device)
            losses[step] = chunked_cross_entropy(model(tokens)[..., :-1, :], tokens[..., 1:], chunk_size=0)
    print(name, losses.mean(), sum(value.numel() for key, value in model.state_dict().items() if lora_filter(key, value)))
    del model, optimizer, logits, loss
