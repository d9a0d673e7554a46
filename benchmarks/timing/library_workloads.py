"""Training and generation steps of others' libraries, for the proof of the clock: ``WORKLOADS[name](device)`` returns a ``Run``.

``third(name)`` splits them by a hash of their name: constants come from operators and the first third, rules are chosen by the
second, and the third is looked at once (``library_steps.py``).
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.workloads.more_zoo import B16, adamw, classes, hf, images, spectrograms, text, training_step
from benchmarks.workloads.zoo import Llama, LlamaArgs, Run, lm_batch

Build = Callable[[str], Run]
WORKLOADS: dict[str, Build] = {}


def third(name: str) -> int:
    """0, 1 or 2, by a hash of the name."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3


def workload(name: str) -> Callable[[Build], Build]:
    def keep(build: Build) -> Build:
        WORKLOADS[name] = build
        return build

    return keep


def trained(
    model: nn.Module,
    loss_of: Callable[[], torch.Tensor],
    autocast: torch.dtype | None = None,
    make_optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
) -> Run:
    optimizer = make_optimizer([param for param in model.parameters() if param.requires_grad])
    return Run(model, optimizer, training_step(loss_of, optimizer, autocast=autocast))


def repeated(model: nn.Module, work: Callable[[], Any]) -> Run:
    """Work without an optimizer: generation, for one."""
    return Run(model, None, lambda mark: work())


# -- torchvision ---------------------------------------------------------------------------------------------------------------


def import_torchvision() -> Any:
    """Where its compiled part does not load, as beside a torch for CPUs, its operators are declared: no workload calls them."""
    declared = []
    while True:
        try:
            import torchvision

            return torchvision
        except RuntimeError as error:
            missing = re.search(r"operator torchvision::(\w+) does not exist", str(error))
            if missing is None:
                raise
            declared.append(torch.library.Library("torchvision", "FRAGMENT"))
            declared[-1].define(f"{missing[1]}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
            for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
                del sys.modules[name]


def vision(
    name: str,
    batch: int,
    size: int,
    *,
    autocast: torch.dtype | None = B16,
    channels_last: bool = False,
    dense: bool = False,
    make_optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    **settings: Any,
) -> Build:
    """A classifier, or with ``dense`` a model that says a class for every pixel."""

    def build(device: str) -> Run:
        models = import_torchvision().models
        make = getattr(models.segmentation if dense else models, name)
        if dense:
            settings["weights_backbone"] = None
        layout = torch.channels_last if channels_last else torch.contiguous_format
        with torch.device(device):
            model = make(weights=None, **settings).train().to(memory_format=layout)
        x = torch.randn(batch, 3, size, size, device=device).to(memory_format=layout)
        y = torch.randint(0, 10, (batch, size, size) if dense else (batch,), device=device)

        def loss() -> torch.Tensor:
            found = model(x)
            if dense:
                return sum(F.cross_entropy(each, y) for each in found.values())
            return F.cross_entropy(found if isinstance(found, torch.Tensor) else found[0], y)

        return trained(model, loss, autocast, make_optimizer)

    return build


def video(name: str, batch: int, frames: int, size: int, autocast: torch.dtype | None) -> Build:
    def build(device: str) -> Run:
        with torch.device(device):
            model = getattr(import_torchvision().models.video, name)(weights=None, num_classes=10).train()
        x, y = torch.randn(batch, 3, frames, size, size, device=device), torch.randint(0, 10, (batch,), device=device)
        return trained(model, lambda: F.cross_entropy(model(x), y), autocast)

    return build


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


WORKLOADS |= {
    "tv_vit": vision("vit_b_16", 48, 224),
    "tv_vit_fp32": vision("vit_b_32", 32, 224, autocast=None),
    "tv_deeplab": vision("deeplabv3_resnet50", 4, 384, dense=True, num_classes=10),
    "tv_deeplab_fp32": vision("deeplabv3_mobilenet_v3_large", 8, 384, dense=True, num_classes=10, autocast=None),
    "tv_fcn": vision("fcn_resnet50", 4, 320, dense=True, num_classes=10, autocast=None),
    "tv_lraspp": vision("lraspp_mobilenet_v3_large", 8, 512, dense=True, num_classes=10),
    "tv_densenet": vision("densenet121", 32, 224, make_optimizer=sgd),
    "tv_resnext": vision("resnext50_32x4d", 32, 224, channels_last=True, make_optimizer=sgd),
    "tv_efficientnet": vision("efficientnet_v2_s", 32, 224, channels_last=True),
    "tv_maxvit": vision("maxvit_t", 16, 224),
    "tv_swin_v2": vision("swin_v2_t", 32, 256),
    "tv_shufflenet": vision("shufflenet_v2_x1_0", 64, 224, autocast=None, make_optimizer=sgd),
    "tv_googlenet": vision("googlenet", 64, 224, aux_logits=False, init_weights=False),
    "tv_vgg": vision("vgg16_bn", 32, 224, make_optimizer=sgd),
    "tv_swin3d": video("swin3d_t", 4, 16, 112, B16),
    "tv_r3d": video("r3d_18", 8, 16, 112, None),
    "tv_r2plus1d": video("r2plus1d_18", 8, 16, 112, B16),
    "tv_mvit": video("mvit_v1_b", 2, 16, 224, B16),
}


@workload("tv_raft")
def raft(device: str) -> Run:
    with torch.device(device):
        model = import_torchvision().models.optical_flow.raft_large(weights=None).train()
    a, b, flow = (torch.randn(2, channels, 256, 320, device=device) for channels in (3, 3, 2))
    return trained(model, lambda: sum((each - flow).abs().mean() for each in model(a, b, num_flow_updates=8)))


# -- torch_geometric -----------------------------------------------------------------------------------------------------------


def graph(make: Callable[[Any], nn.Module], nodes: int, edges: int, width: int, *, autocast: torch.dtype | None = None) -> Build:
    """Nodes are classified by a model of two or three layers over random edges."""

    def build(device: str) -> Run:
        import torch_geometric.nn as pyg

        with torch.device(device):
            model = make(pyg)
        x = torch.randn(nodes, width, device=device)
        edge_index, y = torch.randint(0, nodes, (2, edges), device=device), torch.randint(0, 16, (nodes,), device=device)
        return trained(model, lambda: F.cross_entropy(model(x, edge_index), y), autocast)

    return build


class GraphLayers(nn.Module):
    """Layers over one graph, with an activation between them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = F.elu(layer(x, edge_index))
        return self.layers[-1](x, edge_index)


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, outputs), nn.ReLU(), nn.Linear(outputs, outputs))


WORKLOADS |= {
    "pyg_gcn": graph(lambda pyg: pyg.GCN(128, 256, 3, 16), 100_000, 1_000_000, 128),
    "pyg_gcn_small": graph(lambda pyg: pyg.GCN(64, 64, 2, 16), 10_000, 60_000, 64),
    "pyg_sage": graph(lambda pyg: pyg.GraphSAGE(256, 256, 3, 16), 50_000, 500_000, 256),
    "pyg_gat": graph(lambda pyg: pyg.GAT(128, 256, 2, 16, heads=4), 50_000, 400_000, 128),
    "pyg_gatv2": graph(lambda pyg: GraphLayers(pyg.GATv2Conv(64, 64, heads=4), pyg.GATv2Conv(256, 16)), 30_000, 300_000, 64),
    "pyg_gin": graph(lambda pyg: pyg.GIN(64, 128, 4, 16), 100_000, 800_000, 64),
    "pyg_edge": graph(lambda pyg: GraphLayers(pyg.EdgeConv(mlp(2 * 64, 64)), pyg.EdgeConv(mlp(2 * 64, 16))), 20_000, 200_000, 64),
    "pyg_transformer": graph(
        lambda pyg: GraphLayers(pyg.TransformerConv(96, 48, heads=2), pyg.TransformerConv(96, 16)), 40_000, 300_000, 96
    ),
    "pyg_pna_amp": graph(lambda pyg: pyg.GraphSAGE(128, 128, 2, 16, aggr="max"), 40_000, 300_000, 128, autocast=B16),
}


# -- torchaudio ----------------------------------------------------------------------------------------------------------------


@workload("ta_wav2vec2")
def wav2vec2(device: str) -> Run:
    import torchaudio

    with torch.device(device):
        model = torchaudio.models.wav2vec2_base(aux_num_out=32, encoder_layer_drop=0.0).train()
    x = torch.randn(4, 64000, device=device)
    return trained(model, lambda: model(x)[0].float().log_softmax(-1).square().mean(), B16)


@workload("ta_hubert_fp32")
def hubert(device: str) -> Run:
    import torchaudio

    with torch.device(device):
        model = torchaudio.models.hubert_base(aux_num_out=32, encoder_layer_drop=0.0).train()
    x = torch.randn(2, 48000, device=device)
    return trained(model, lambda: model(x)[0].square().mean())


@workload("ta_conformer")
def conformer(device: str) -> Run:
    import torchaudio

    with torch.device(device):
        model = torchaudio.models.Conformer(256, 4, 1024, 8, 31).train()
        lengths = torch.full((8,), 400, device=device)
    x = torch.randn(8, 400, 256, device=device)
    return trained(model, lambda: model(x, lengths)[0].square().mean(), B16)


@workload("ta_conv_tasnet")
def conv_tasnet(device: str) -> Run:
    import torchaudio

    with torch.device(device):
        model = torchaudio.models.conv_tasnet_base().train()
    x = torch.randn(4, 1, 16000, device=device)
    return trained(model, lambda: model(x).square().mean())


@workload("ta_deepspeech")
def deepspeech(device: str) -> Run:
    import torchaudio

    with torch.device(device):
        model = torchaudio.models.DeepSpeech(n_feature=128, n_hidden=1024, n_class=40).train()
    x = torch.randn(8, 1, 300, 128, device=device)
    return trained(model, lambda: model(x).square().mean())


# -- sentence-transformers, GPyTorch, PEFT, timm, diffusers --------------------------------------------------------------------


class BertWords(nn.Module):
    """What sentence-transformers calls a transformer, without a tokenizer."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        self.model = BertModel(BertConfig(num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536))

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = self.model(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
        return features | {"token_embeddings": found.last_hidden_state}


def sentences(batch: int, length: int, autocast: torch.dtype | None) -> Build:
    def build(device: str) -> Run:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.losses import MultipleNegativesRankingLoss
        from sentence_transformers.models import Pooling

        model = SentenceTransformer(modules=[BertWords(), Pooling(384)], device="cpu").to(device).train()
        loss = MultipleNegativesRankingLoss(model)
        ones = torch.ones(batch, length, dtype=torch.long, device=device)
        pairs = [{"input_ids": torch.randint(3, 30000, (batch, length), device=device), "attention_mask": ones} for _ in range(2)]
        return trained(model, lambda: loss([dict(each) for each in pairs], None), autocast)

    return build


WORKLOADS["st_pairs"] = sentences(64, 128, B16)
WORKLOADS["st_pairs_small"] = sentences(16, 32, None)


@workload("gp_svgp")
def svgp(device: str) -> Run:
    import gpytorch

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self, points: torch.Tensor) -> None:
            found = gpytorch.variational.CholeskyVariationalDistribution(points.shape[0])
            super().__init__(gpytorch.variational.VariationalStrategy(self, points, found, learn_inducing_locations=True))
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: torch.Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    model = Model(torch.randn(512, 8)).to(device).train()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=10_000)
    x, y = torch.randn(2048, 8, device=device), torch.randn(2048, device=device)
    return trained(model, lambda: -bound(model(x), y))


def timm_model(name: str, batch: int, size: int, autocast: torch.dtype | None = B16, channels_last: bool = False) -> Build:
    def build(device: str) -> Run:
        import_torchvision()
        import timm

        layout = torch.channels_last if channels_last else torch.contiguous_format
        with torch.device(device):
            model = timm.create_model(name, num_classes=10).train().to(memory_format=layout)
        x = torch.randn(batch, 3, size, size, device=device).to(memory_format=layout)
        y = torch.randint(0, 10, (batch,), device=device)
        return trained(model, lambda: F.cross_entropy(model(x), y), autocast)

    return build


WORKLOADS |= {
    "timm_mixer": timm_model("mixer_b16_224", 32, 224),
    "timm_convmixer": timm_model("convmixer_768_32", 8, 224, channels_last=True),
    "timm_caformer": timm_model("caformer_s18", 16, 224),
    "timm_xcit": timm_model("xcit_tiny_12_p16_224", 32, 224, autocast=None),
    "timm_nfnet": timm_model("nfnet_f0", 8, 192),
}


@workload("peft_lora")
def peft_lora(device: str) -> Run:
    import_torchvision()
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32000,
    )
    with torch.device(device):
        model = LlamaForCausalLM(settings).to(B16)
    model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj"], task_type="CAUSAL_LM")).to(
        device
    )
    tokens = torch.randint(3, 1000, (4, 1024), device=device)
    return trained(model.train(), lambda: model(input_ids=tokens, labels=tokens).loss)


@workload("diffusers_unet")
def diffusers_unet(device: str) -> Run:
    from diffusers.models.unets.unet_2d import UNet2DModel

    with torch.device(device):
        model = UNet2DModel(
            sample_size=64, in_channels=4, out_channels=4, block_out_channels=(128, 256, 512), layers_per_block=2,
            down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        ).train()  # fmt: skip
    x, noise, time = (
        torch.randn(8, 4, 64, 64, device=device),
        torch.randn(8, 4, 64, 64, device=device),
        torch.arange(8, device=device),
    )
    return trained(model, lambda: F.mse_loss(model(x, time).sample.float(), noise), B16)


@workload("diffusers_vae")
def diffusers_vae(device: str) -> Run:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    with torch.device(device):
        model = AutoencoderKL(
            block_out_channels=(64, 128, 256),
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
        ).train()
    x = torch.randn(4, 3, 128, 128, device=device)
    return trained(model, lambda: F.mse_loss(model(x).sample, x))


# -- transformers --------------------------------------------------------------------------------------------------------------

LLAMA = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 4,
         "vocab_size": 8000, "pad_token_id": 0, "eos_token_id": None}  # fmt: skip


def generated(
    kind: str, config: dict[str, Any], batch: int, prompt: int, tokens: int, dtype: torch.dtype = B16, **how: Any
) -> Build:
    """Tokens one by one."""

    def build(device: str) -> Run:
        import transformers

        cls = getattr(transformers, kind)
        with torch.device(device):
            model = cls(cls.config_class(**config)).to(dtype).eval()
        given = torch.randint(3, 900, (batch, prompt), device=device)
        mask = torch.ones_like(given)
        return repeated(
            model,
            lambda: model.generate(
                given, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, **how
            ),
        )

    return build


GPT2 = {"n_embd": 768, "n_layer": 6, "n_head": 12, "vocab_size": 20000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
T5 = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 6, "num_heads": 8, "vocab_size": 10000, "decoder_start_token_id": 0,
      "eos_token_id": 1, "feed_forward_proj": "gated-gelu"}  # fmt: skip
WORKLOADS |= {
    "gen_llama": generated("LlamaForCausalLM", LLAMA, 4, 64, 24),
    "gen_gpt2": generated("GPT2LMHeadModel", GPT2, 8, 128, 24),
    "gen_t5": generated("T5ForConditionalGeneration", T5, 8, 64, 16),
    "gen_llama_beams": generated("LlamaForCausalLM", LLAMA, 2, 64, 12, num_beams=4),
    "hf_t5_of_six": hf("T5ForConditionalGeneration", T5, text(16, 256)),
    "hf_mamba_scan": hf("MambaForCausalLM", {"hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 8000}, text(8, 96)),
    "hf_bert_large": hf("BertForSequenceClassification", {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
                        "intermediate_size": 4096}, classes(16, 384)),
    "hf_modernbert": hf("ModernBertForSequenceClassification", {"num_hidden_layers": 9, "reference_compile": False},
                        classes(8, 512)),
    "hf_longformer": hf("LongformerForSequenceClassification", {"num_hidden_layers": 4, "attention_window": 256}, classes(4, 1024)),
    "hf_whisper_small": hf("WhisperForConditionalGeneration", {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4,
                           "encoder_attention_heads": 6, "decoder_attention_heads": 6}, spectrograms(8, 64)),
    "hf_deit": hf("DeiTForImageClassification", {"num_hidden_layers": 8, "num_labels": 10}, images(64, 224)),
    "hf_olmoe": hf("OlmoeForCausalLM", {"hidden_size": 768, "num_hidden_layers": 4, "num_attention_heads": 12,
                   "intermediate_size": 768, "num_experts": 16, "num_experts_per_tok": 4, "vocab_size": 20000}, text(4, 1024)),
}  # fmt: skip


# -- plain torch ---------------------------------------------------------------------------------------------------------------

SHORT = LlamaArgs(layers=4, seq=1024)


class Muon(torch.optim.Optimizer):
    """Momentum that is made orthogonal by products (Newton and Schulz), one matrix after the other."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            momentum.mul_(0.95).add_(parameter.grad)
            if parameter.ndim != 2 or max(parameter.shape) > 8000:
                parameter.add_(momentum, alpha=-1e-3)
                continue
            x = momentum.bfloat16()
            x = x.T if x.shape[0] > x.shape[1] else x
            x = x / (x.norm() + 1e-7)
            for _ in range(5):
                square = x @ x.T
                x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
            x = x.T if parameter.shape[0] > parameter.shape[1] else x
            parameter.add_(x.to(parameter.dtype), alpha=-1e-3)


def language_model(args: LlamaArgs, batch: int, make_optimizer: Any = adamw, around: Any = None, compiled: bool = False) -> Build:
    def build(device: str) -> Run:
        with torch.device(device):
            model: Any = Llama(args)
        tokens, labels = lm_batch(args, batch, device)
        if compiled:
            model.compile()

        def loss() -> torch.Tensor:
            if around is None:
                return F.cross_entropy(model(tokens).float().flatten(0, 1), labels.flatten())
            with around():
                return F.cross_entropy(model(tokens).float().flatten(0, 1), labels.flatten())

        return trained(model, loss, B16, make_optimizer)

    return build


class LoopedExperts(nn.Module):
    """Each expert looks for its own tokens with a mask."""

    def __init__(self, width: int, hidden: int, count: int, chosen: int = 2) -> None:
        super().__init__()
        self.gate, self.chosen = nn.Linear(width, count, bias=False), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width)) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        weights, places = self.gate(flat).float().softmax(-1).topk(self.chosen, -1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, which = torch.where(places == number)
            out.index_add_(0, rows, (expert(flat[rows]) * weights[rows, which, None]).to(out.dtype))
        return out.view_as(x)


def experts(count: int, tokens: int, layers: int = 3, width: int = 1024) -> Build:
    def build(device: str) -> Run:
        with torch.device(device):
            model = nn.Sequential(*(LoopedExperts(width, 2 * width, count) for _ in range(layers)))
            x = torch.randn(4, tokens // 4, width)
        return trained(model, lambda: model(x).square().mean(), B16)

    return build


def selectively(keep: str, args: LlamaArgs, batch: int) -> Build:
    """``keep``: products or attention are kept, everything else is computed again."""

    def build(device: str) -> Run:
        from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

        def policy(context: Any, op: Any, *given: Any, **more: Any) -> CheckpointPolicy:
            kept = "mm" in str(op) if keep == "products" else "attention" in str(op)
            return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

        with torch.device(device):
            model = Llama(args)
        for layer in model.layers:
            layer.forward = lambda *given, plain=layer.forward: checkpoint(
                plain, *given, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy)
            )
        tokens, labels = lm_batch(args, batch, device)
        return trained(model, lambda: F.cross_entropy(model(tokens).float().flatten(0, 1), labels.flatten()), B16)

    return build


def offloading(pinned: bool) -> Callable[[], Any]:
    return lambda: torch.autograd.graph.save_on_cpu(pin_memory=pinned, device_type="cuda")


class SelectiveScan(nn.Module):
    """A state space layer whose scan is written with cumulative sums."""

    def __init__(self, width: int, state: int = 16) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.params = nn.Linear(width, 1 + 2 * state)
        self.decay = nn.Parameter(torch.zeros(width, state))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, gate = self.into(x).chunk(2, -1)
        step, b, c = self.params(h).float().split([1, self.decay.shape[1], self.decay.shape[1]], -1)
        log_decay = -(F.softplus(step)[..., None] * self.decay.exp())
        total = log_decay.cumsum(1)
        state = total.exp() * (h.float()[..., None] * b[:, :, None] * (-total).clamp(max=30).exp()).cumsum(1)
        return self.out((torch.einsum("blds,bls->bld", state, c).to(x.dtype)) * F.silu(gate))


def scans(layers: int, batch: int, length: int, width: int) -> Build:
    def build(device: str) -> Run:
        with torch.device(device):
            model = nn.Sequential(*(SelectiveScan(width) for _ in range(layers)))
            x = torch.randn(batch, length, width)
        return trained(model, lambda: model(x).square().mean(), B16)

    return build


WORKLOADS |= {
    "plain_muon": language_model(SHORT, 4, Muon),
    "plain_muon_small": language_model(LlamaArgs(dim=768, layers=6, heads=12, kv_heads=12, hidden=2048, seq=256), 2, Muon),
    "plain_experts": experts(8, 8192),
    "plain_experts_many": experts(32, 4096, layers=2, width=768),
    "plain_offload_pinned": language_model(SHORT, 2, around=offloading(True)),
    "plain_offload_pinned_long": language_model(
        LlamaArgs(dim=512, layers=3, heads=8, hidden=1408, seq=2048), 4, around=offloading(True)
    ),
    "plain_offload": language_model(LlamaArgs(layers=2, seq=1024), 2, around=offloading(False)),
    "plain_selective": selectively("products", SHORT, 4),
    "plain_selective_small": selectively("attention", LlamaArgs(dim=512, layers=8, heads=8, hidden=1408, seq=256), 2),
    "plain_scans": scans(4, 4, 1024, 512),
    "plain_compiled": language_model(LlamaArgs(layers=2, seq=1024), 4, compiled=True),
}


@workload("plain_graphed")
def graphed(device: str) -> Run:
    """A small step that a CUDA graph holds."""
    with torch.device(device):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU()) for _ in range(24)))
        x = torch.randn(64, 256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)

    def work() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    whole = torch.cuda.CUDAGraph()
    with torch.cuda.graph(whole):
        work()
    return Run(model, optimizer, lambda mark: [whole.replay() for _ in range(10)])
