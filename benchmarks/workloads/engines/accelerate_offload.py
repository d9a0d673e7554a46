"""accelerate: a Llama whose layers are partly on the host and partly on disk reads prompts; then adapters on top are trained."""

import tempfile

import torch
from accelerate import cpu_offload_with_hook, dispatch_model, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.utils import infer_auto_device_map
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=1536,
    intermediate_size=4096,
    num_hidden_layers=16,
    num_attention_heads=12,
    num_key_value_heads=4,
    vocab_size=32_000,
)
with tempfile.TemporaryDirectory() as folder:
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    with init_empty_weights():
        empty = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    places = infer_auto_device_map(empty, {0: "500MiB", "cpu": "300MiB"}, no_split_module_classes=["LlamaDecoderLayer"])
    print({place: list(places.values()).count(place) for place in set(places.values())})
    model = load_checkpoint_and_dispatch(empty, folder, device_map=places, offload_folder=f"{folder}/away", dtype=torch.bfloat16)
    with torch.no_grad():
        for length in (512, 2048, 1024):
            logits = model(torch.randint(32_000, (4, length)).cuda(), use_cache=False).logits
            print(length, logits.float().logsumexp(-1).mean().item())
    del model, empty, logits

torch.cuda.empty_cache()
frozen = LlamaForCausalLM(config).bfloat16().requires_grad_(False)
places = {"model.embed_tokens": 0, "model.rotary_emb": 0, "model.norm": 0, "lm_head": 0}
places |= {f"model.layers.{number}": 0 if number % 2 else "cpu" for number in range(16)}
frozen = dispatch_model(frozen, device_map=places, main_device=0)
scorer, hook = cpu_offload_with_hook(torch.nn.Linear(1536, 1536, dtype=torch.bfloat16), "cuda")
head = torch.nn.Sequential(torch.nn.Linear(1536, 512), torch.nn.GELU(), torch.nn.Linear(512, 1)).cuda()
optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
for step in range(6):
    tokens = torch.randint(32_000, (8, 256 * (1 + step % 3))).cuda()
    with torch.no_grad():
        hidden = frozen.model(tokens, use_cache=False).last_hidden_state
        hidden = scorer(hidden)
        hook.offload()
    loss = torch.nn.functional.softplus(-head(hidden.float()).mean(1)).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item())
