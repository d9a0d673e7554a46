"""Compiled workloads of kinds that ``compiled_blind.py`` does not have: a second set to be predicted first and measured afterwards.

    python benchmarks/blind/compiled_blind.py --set kinds --predict      # then --measure on a GPU, then --compare

``KINDS[name](device)`` returns a ``Run`` as in ``zoo.py``.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.blind.compiled_blind import GPT, SMALL, ConvNet, FlexGPT, compile_blocks, language_model, steps, vision
from benchmarks.workloads.frontier_zoo import world
from benchmarks.workloads.zoo import Llama, LlamaArgs, Run, lm_batch

B16 = torch.bfloat16


def from_transformers(name, config, inputs, prepare=lambda model: model.compile(), dtype=torch.float32, autocast=B16):
    """A model of Hugging Face's that gives its loss itself; ``inputs(device)`` makes its batch."""

    def build(device):
        import transformers

        config_name, settings = config
        with torch.device(device):
            model = getattr(transformers, name)(getattr(transformers, config_name)(**settings)).to(dtype)
        model.train()
        prepare(model)
        batch = inputs(device)
        opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
        return Run(model, opt, steps(lambda: model(**batch).loss, opt, autocast=autocast))

    return build


def tokens(batch, length, vocab=1000):
    def make(device):
        ids = torch.randint(0, vocab, (batch, length), device=device)
        return dict(input_ids=ids, labels=ids.clone())

    return make


def images(batch, size, classes=10):
    return lambda device: dict(
        pixel_values=torch.randn(batch, 3, size, size, device=device), labels=torch.randint(0, classes, (batch,), device=device)
    )


def segmented(batch, size):
    return lambda device: dict(
        pixel_values=torch.randn(batch, 3, size, size, device=device),
        labels=torch.randint(0, 10, (batch, size, size), device=device),
    )


def speech(batch):
    return lambda device: dict(
        input_features=torch.randn(batch, 80, 3000, device=device), labels=torch.randint(0, 1000, (batch, 128), device=device)
    )


def paired(batch, size=224, length=64):
    return lambda device: dict(
        input_ids=torch.randint(0, 1000, (batch, length), device=device),
        pixel_values=torch.randn(batch, 3, size, size, device=device),
        return_loss=True,
    )


def documents(device):
    """Flex attention: causal inside of each document."""
    from torch.nn.attention.flex_attention import create_block_mask

    a = LlamaArgs(dim=768, layers=4, heads=12, vocab=16000, seq=2048)
    with torch.device(device):
        model = FlexGPT(a).to(B16)
    compiled = torch.compile(model)
    document = torch.arange(a.seq, device=device) // 384
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (document[q] == document[k]), None, None, a.seq, a.seq, device=device)
    inputs, labels = lm_batch(a, 2, device)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Run(model, opt, steps(lambda: F.cross_entropy(compiled(inputs, mask).flatten(0, 1).float(), labels.flatten()), opt))


def growing_batches(device, sizes=(2, 6, 4)):
    """Another number of sequences each step, blocks compiled one by one."""
    a = SMALL
    with torch.device(device):
        model = GPT(a)
    compile_blocks(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = [lm_batch(a, size, device) for size in sizes]
    number = iter(range(10**6))

    def loss():
        inputs, labels = batches[next(number) % len(batches)]
        return F.cross_entropy(model(inputs).flatten(0, 1).float(), labels.flatten())

    return Run(model, opt, steps(loss, opt, autocast=B16))


def everything_compiled(device):
    """Model and loss in one function, clipping and the optimizer in another."""
    a = LlamaArgs(dim=768, layers=3, heads=12, kv_heads=4, hidden=2048, vocab=8000, seq=512)
    with torch.device(device):
        model = Llama(a)
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    inputs, labels = lm_batch(a, 8, device)
    loss = torch.compile(lambda x, y: F.cross_entropy(model(x).flatten(0, 1).float(), y.flatten(), label_smoothing=0.1))

    @torch.compile
    def update():
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()

    return Run(model, opt, steps(lambda: loss(inputs, labels), opt, autocast=B16, step_of=update))


class Low(nn.Module):
    """A frozen product and two small ones beside it, with dropout."""

    def __init__(self, base, rank=8):
        super().__init__()
        self.base, self.drop = base.requires_grad_(False), nn.Dropout(0.05)
        self.a, self.b = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(self.drop(x))) * 2.0


def adapters_recomputed(device):
    """Adapters on a frozen model, each block recomputed inside of what is compiled."""
    a = SMALL
    with torch.device(device):
        model = GPT(a).requires_grad_(False).to(B16)
        for layer in model.layers:
            layer.up, layer.down = Low(layer.up), Low(layer.down)
    model.to(device=device, dtype=B16)
    inputs, labels = lm_batch(a, 8, device)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    @torch.compile
    def forward(x):
        h = model.embed(x)
        for layer in model.layers:
            h = checkpoint(layer, h, use_reentrant=False)
        return model.head(model.norm(h))

    return Run(model, opt, steps(lambda: F.cross_entropy(forward(inputs).flatten(0, 1).float(), labels.flatten()), opt))


class Diffuser(nn.Module):
    """A diffusion transformer's block: scale and shift from the time, attention without a mask."""

    def __init__(self, dim=768, heads=12):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, *(nn.LayerNorm(dim, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down, self.modulate = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim), nn.Linear(dim, 6 * dim)

    def forward(self, x, time):
        a, b, c, d, e, f = self.modulate(F.silu(time))[:, None].chunk(6, -1)
        n, s, dim = x.shape
        q, k, v = (t.view(n, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x) * (1 + a) + b).chunk(3, -1))
        x = x + c * self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, s, dim))
        return x + f * self.down(F.gelu(self.up(self.norm2(x) * (1 + d) + e), approximate="tanh"))


def diffusion(device, dim=768):
    with torch.device(device):
        blocks = nn.ModuleList(Diffuser(dim) for _ in range(4))
        patch, x, time = nn.Linear(16, dim), torch.randn(16, 1024, 16), torch.randn(16, dim)
    model = nn.ModuleList([patch, blocks])
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)

    @torch.compile(mode="max-autotune-no-cudagraphs")
    def loss():
        y = patch(x)
        for block in blocks:
            y = block(y, time)
        return y.float().square().mean()

    return Run(model, opt, steps(loss, opt, autocast=B16))


def half_precision(device):
    return vision(ConvNet, 16, 192, autocast=torch.float16, scaler=torch.amp.GradScaler("cuda"))(device)


@world(4)
def fsdp1(device):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    a = LlamaArgs(dim=1536, layers=4, heads=12, vocab=16000, seq=1024)
    model = GPT(a, tied=False).to(device)
    policy = ModuleWrapPolicy({type(model.layers[0])})
    model = FullyShardedDataParallel(
        model, auto_wrap_policy=policy, mixed_precision=MixedPrecision(B16, B16), device_id=0, use_orig_params=True
    )
    compiled = torch.compile(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs, labels = lm_batch(a, 4, device)
    return Run(model, opt, steps(lambda: F.cross_entropy(compiled(inputs).flatten(0, 1).float(), labels.flatten()), opt), fsdp=True)


GEMMA = dict(hidden_size=768, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, head_dim=96,
             intermediate_size=2048, vocab_size=32000, sliding_window=256)  # fmt: skip
OLMO = dict(hidden_size=768, num_hidden_layers=3, num_attention_heads=12, intermediate_size=2048, vocab_size=32000)
WHISPER = dict(d_model=384, encoder_layers=3, decoder_layers=3, encoder_attention_heads=6, decoder_attention_heads=6,
               encoder_ffn_dim=1536, decoder_ffn_dim=1536)  # fmt: skip
SWIN = dict(embed_dim=96, depths=[2, 2, 2], num_heads=[3, 6, 12], num_labels=10, image_size=224)
CONVNEXT = dict(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 4, 2], num_labels=10)
SEGFORMER = dict(num_labels=10, depths=[1, 1, 1, 1])
ROBERTA = dict(num_hidden_layers=3, hidden_size=768, num_attention_heads=12, vocab_size=16000)
CLIP = dict(text_config=dict(num_hidden_layers=3), vision_config=dict(num_hidden_layers=3))

KINDS = {
    "hf_gemma3": from_transformers("Gemma3ForCausalLM", ("Gemma3TextConfig", GEMMA), tokens(4, 1024), dtype=B16, autocast=None),
    "hf_olmo2": from_transformers("Olmo2ForCausalLM", ("Olmo2Config", OLMO), tokens(4, 1024)),
    "hf_whisper": from_transformers("WhisperForConditionalGeneration", ("WhisperConfig", WHISPER), speech(8)),
    "hf_swin": from_transformers("SwinForImageClassification", ("SwinConfig", SWIN), images(32, 224)),
    "hf_convnextv2": from_transformers("ConvNextV2ForImageClassification", ("ConvNextV2Config", CONVNEXT), images(32, 224)),
    "hf_segformer": from_transformers("SegformerForSemanticSegmentation", ("SegformerConfig", SEGFORMER), segmented(8, 256)),
    "hf_roberta_blocks": from_transformers(
        "RobertaForMaskedLM", ("RobertaConfig", ROBERTA), tokens(16, 256),
        prepare=lambda model: [layer.compile() for layer in model.roberta.encoder.layer],
    ),
    "hf_clip": from_transformers("CLIPModel", ("CLIPConfig", CLIP), paired(32)),
    "documents": documents,
    "growing_batches": growing_batches,
    "everything_compiled": everything_compiled,
    "adapters_recomputed": adapters_recomputed,
    "diffusion": diffusion,
    "half_precision": half_precision,
    "gpt_max_autotune": language_model(GPT, partial(torch.compile, mode="max-autotune-no-cudagraphs")),
    "llama_cudagraphs": language_model(Llama, partial(torch.compile, backend="cudagraphs"), dtype=B16, autocast=None),
    "fsdp1": fsdp1,
}  # fmt: skip
