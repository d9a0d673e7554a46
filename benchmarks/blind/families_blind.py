"""How far off are programs of library families that were not tried before: composer, timm, diffusers, PEFT's methods,
graphs, proteins, speech, time series, detectors of transformers?

Each row is three training steps of a model that a library has, with data that are made up, and as the library's own examples train
it: its losses, optimizers, averages of weights, mixed precision.

    python benchmarks/blind/families_blind.py --predict [ROW ...]     needs the packages in PACKAGES
    python benchmarks/blind/families_blind.py --measure [ROW ...]     on an H200, with the same packages
    python benchmarks/blind/families_blind.py --compare
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from functools import partial

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.blind.two_sides import Sides, main, measured_steps, predicted_steps

STEPS = 3
PACKAGES = "transformers torchvision torchaudio torch_geometric sentence-transformers peft diffusers timm fair-esm speechbrain"
PACKAGES += " x-transformers mosaicml litgpt"
Step = Callable[[], None]


def training(
    model: nn.Module,
    loss_of: Callable[[], torch.Tensor],
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    after: Callable[[], None] = lambda: None,
) -> Step:
    made = optimizer([param for param in model.parameters() if param.requires_grad], lr=1e-4)

    def step() -> None:
        loss_of().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        made.step()
        made.zero_grad()
        after()

    return step


def half() -> torch.autocast:
    return torch.autocast("cuda", torch.bfloat16)


# -- timm ----------------------------------------------------------------------------------------------------------------------


def timm_model(kind: str, batch: int, side: int, optimizer: str = "adamw", averages: bool = False, **options: object) -> Step:
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    model = timm.create_model(kind, pretrained=False, num_classes=1000, **options).cuda().train()
    if "vit" not in kind and "swin" not in kind:
        model = model.to(memory_format=torch.channels_last)
    made = create_optimizer_v2(model, opt=optimizer, lr=1e-3, weight_decay=0.05)
    average = ModelEmaV3(model, decay=0.999) if averages else None
    mix = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=1000)
    lossy = SoftTargetCrossEntropy()

    def step() -> None:
        images = torch.randn(batch, 3, side, side).cuda(non_blocking=True)
        labels = torch.randint(1000, (batch,)).cuda(non_blocking=True)
        images, targets = mix(images, labels)
        with half():
            loss = lossy(model(images), targets)
        loss.backward()
        made.step()
        made.zero_grad()
        if average is not None:
            average.update(model)

    return step


# -- diffusers -----------------------------------------------------------------------------------------------------------------


def denoiser(batch: int, side: int, checkpointing: bool = False) -> Step:
    """Stable Diffusion's U-Net, as the text-to-image example trains it, with averages of its weights."""
    from diffusers import DDPMScheduler, UNet2DConditionModel
    from diffusers.training_utils import EMAModel

    model = UNet2DConditionModel(
        sample_size=side,
        block_out_channels=(160, 320, 640),
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=768,
    ).cuda()
    if checkpointing:
        model.enable_gradient_checkpointing()
    average = EMAModel(model.parameters(), model_cls=UNet2DConditionModel, model_config=model.config)
    average.to("cuda")
    scheduler = DDPMScheduler(num_train_timesteps=1000)

    def loss_of() -> torch.Tensor:
        latents, noise = (torch.randn(batch, 4, side, side, device="cuda") for _ in range(2))
        times = torch.randint(1000, (batch,), device="cuda").long()
        text = torch.randn(batch, 77, 768, device="cuda")
        with half():
            found = model(scheduler.add_noise(latents, noise, times), times, text).sample
        return F.mse_loss(found.float(), noise)

    return training(model, loss_of, after=lambda: average.step(model.parameters()))


def autoencoder_kl(batch: int, side: int) -> Step:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(
        block_out_channels=(128, 256, 512),
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        layers_per_block=2,
    ).cuda()

    def loss_of() -> torch.Tensor:
        images = torch.randn(batch, 3, side, side, device="cuda")
        with half():
            posterior = model.encode(images).latent_dist
            found = model.decode(posterior.sample()).sample
        return F.l1_loss(found.float(), images) + 1e-6 * posterior.kl().mean()

    return training(model, loss_of)


def rectified_flow(batch: int, side: int) -> Step:
    """A small SD3 transformer with adapters of PEFT on its attention."""
    from diffusers import SD3Transformer2DModel
    from peft import LoraConfig

    model = SD3Transformer2DModel(
        sample_size=side,
        num_layers=12,
        attention_head_dim=64,
        num_attention_heads=16,
        joint_attention_dim=2048,
        caption_projection_dim=1024,
    ).to("cuda", torch.bfloat16)
    model.requires_grad_(False)
    model.add_adapter(LoraConfig(r=32, lora_alpha=32, target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
    for param in model.parameters():
        if param.requires_grad:
            param.data = param.data.float()

    def loss_of() -> torch.Tensor:
        latents, noise = (torch.randn(batch, 16, side, side, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        sigma = torch.rand(batch, 1, 1, 1, device="cuda", dtype=torch.bfloat16)
        text, pooled = torch.randn(batch, 160, 2048, device="cuda").bfloat16(), torch.randn(batch, 2048, device="cuda").bfloat16()
        with half():
            found = model(
                (1 - sigma) * latents + sigma * noise,
                timestep=sigma.flatten() * 1000,
                encoder_hidden_states=text,
                pooled_projections=pooled,
            )
        return F.mse_loss(found.sample.float(), (noise - latents).float())

    return training(model, loss_of)


# -- adapters ------------------------------------------------------------------------------------------------------------------


def adapted(method: str, batch: int = 4, length: int = 1024) -> Step:
    import peft
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=12,
        num_attention_heads=16,
        num_key_value_heads=4,
        vocab_size=32000,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).bfloat16()
    layers = ["q_proj", "v_proj", "down_proj"]
    task = peft.TaskType.CAUSAL_LM
    configs = {
        "dora": lambda: peft.LoraConfig(r=16, use_dora=True, target_modules=layers, task_type=task),
        "vera": lambda: peft.VeraConfig(r=64, target_modules=["q_proj"], task_type=task),
        "ia3": lambda: peft.IA3Config(target_modules=layers, feedforward_modules=["down_proj"], task_type=task),
        "prompt": lambda: peft.PromptTuningConfig(num_virtual_tokens=32, task_type=task),
        "prefix": lambda: peft.PrefixTuningConfig(num_virtual_tokens=32, task_type=task),
        "loha": lambda: peft.LoHaConfig(r=16, target_modules=layers, task_type=task),
        "adalora": lambda: peft.AdaLoraConfig(target_modules=layers, total_step=100, task_type=task),
    }
    model = peft.get_peft_model(model, configs[method]())
    tokens = torch.randint(32000, (batch, length)).cuda()

    def loss_of() -> torch.Tensor:
        with half():
            return model(input_ids=tokens, labels=tokens, use_cache=False).loss

    return training(model, loss_of)


# -- composer, litgpt, x-transformers -------------------------------------------------------------------------------


def composed(batch: int = 32, length: int = 512) -> Step:
    """composer's own wrapper of a Hugging Face model, and its low-precision layer norm."""
    from composer.functional import apply_gated_linear_units
    from composer.models import HuggingFaceModel
    from transformers import BertConfig, BertForMaskedLM

    inner = BertForMaskedLM(BertConfig(num_hidden_layers=8))
    apply_gated_linear_units(inner, optimizers=None)
    model = HuggingFaceModel(inner, use_logits=True).cuda().train()
    tokens = torch.randint(30522, (batch, length)).cuda()

    def loss_of() -> torch.Tensor:
        with half():
            rows = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
            return model.loss(model(rows), rows)

    return training(model, loss_of)


def litgpt_moe(batch: int = 4, length: int = 1024) -> Step:
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    config = Config.from_name(
        "Mixtral-8x7B-v0.1",
        n_layer=4,
        n_embd=1024,
        n_head=16,
        n_query_groups=4,
        intermediate_size=2048,
        moe_intermediate_size=2048,
        padded_vocab_size=32000,
        block_size=length,
    )
    with torch.device("cuda"):
        model = GPT(config).bfloat16()
    tokens = torch.randint(32000, (batch, length)).cuda()
    return training(model, lambda: chunked_cross_entropy(model(tokens)[:, :-1], tokens[:, 1:]))


def x_transformer(batch: int = 8, length: int = 1024) -> Step:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(
        dim=768, depth=12, heads=12, rotary_pos_emb=True, ff_glu=True, attn_flash=True, use_rmsnorm=True, attn_kv_heads=4
    )
    model = AutoregressiveWrapper(
        TransformerWrapper(num_tokens=20000, max_seq_len=length, num_memory_tokens=16, attn_layers=layers)
    ).cuda()
    tokens = torch.randint(20000, (batch, length)).cuda()

    def loss_of() -> torch.Tensor:
        with half():
            return model(tokens)

    return training(model, loss_of)


# -- graphs and proteins -------------------------------------------------------------------------------------------------------


def graph(kind: str, nodes: int = 100_000, edges: int = 1_000_000) -> Step:
    from torch_geometric import nn as pyg

    draw = torch.Generator().manual_seed(0)
    places = torch.randint(nodes, (2, edges), generator=draw).cuda()
    features, labels = torch.randn(nodes, 128, generator=draw).cuda(), torch.randint(40, (nodes,), generator=draw).cuda()
    kinds = {
        "gatv2": lambda: pyg.GAT(128, 64, 3, 40, heads=4, v2=True, dropout=0.5),
        "pna": lambda: pyg.PNA(
            128, 64, 3, 40, aggregators=["mean", "max", "std"], scalers=["identity", "amplification"], deg=torch.ones(64).long()
        ),
        "sage_jk": lambda: pyg.GraphSAGE(128, 256, 3, 40, jk="cat", norm="batch_norm"),
        "transformer": lambda: pyg.Sequential(
            "x, edge_index",
            [
                (pyg.TransformerConv(128, 64, heads=4), "x, edge_index -> x"),
                nn.ReLU(),
                (pyg.TransformerConv(256, 40, heads=1), "x, edge_index -> x"),
            ],
        ),
    }
    model = kinds[kind]().cuda().train()
    return training(model, lambda: F.cross_entropy(model(features, places), labels))


def molecules(batch: int = 512) -> Step:
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GIN, MLP, GPSConv, global_add_pool

    draw = torch.Generator().manual_seed(0)
    sizes = torch.randint(10, 40, (batch,), generator=draw).tolist()
    graphs = [Data(x=torch.randn(n, 64, generator=draw), edge_index=torch.randint(n, (2, 3 * n), generator=draw)) for n in sizes]
    rows = Batch.from_data_list(graphs).to("cuda")
    convs = nn.ModuleList(GPSConv(64, GIN(64, 64, 2), heads=4) for _ in range(4)).cuda()
    head = MLP([64, 64, 1]).cuda()
    model = nn.ModuleList([convs, head])

    def loss_of() -> torch.Tensor:
        x = rows.x
        for conv in convs:
            x = conv(x, rows.edge_index, rows.batch)
        return head(global_add_pool(x, rows.batch)).pow(2).mean()

    return training(model, loss_of)


def protein(batch: int = 16, length: int = 512) -> Step:
    import esm

    alphabet = esm.data.Alphabet.from_architecture("ESM-1b")
    model = (
        esm.model.esm2.ESM2(num_layers=12, embed_dim=480, attention_heads=20, alphabet=alphabet, token_dropout=True).cuda().train()
    )
    tokens = torch.randint(4, 24, (batch, length)).cuda()

    def loss_of() -> torch.Tensor:
        with half():
            return F.cross_entropy(model(tokens)["logits"].flatten(0, 1).float(), tokens.flatten())

    return training(model, loss_of)


# -- speech --------------------------------------------------------------------------------------------------------------------


def transducer(batch: int = 8, frames: int = 800, targets: int = 60) -> Step:
    """torchaudio's Emformer with its compiled loss."""
    import torchaudio

    model = torchaudio.models.emformer_rnnt_base(num_symbols=512).cuda().train()
    lossy = torchaudio.transforms.RNNTLoss(blank=511, fused_log_softmax=True)

    def loss_of() -> torch.Tensor:
        features = torch.randn(batch, frames + 4, 80, device="cuda")
        lengths = torch.full((batch,), frames, dtype=torch.int32, device="cuda")
        tokens = torch.randint(511, (batch, targets), dtype=torch.int32).cuda()
        sizes = torch.full((batch,), targets, dtype=torch.int32, device="cuda")
        out, out_lengths, _, _ = model(features, lengths, F.pad(tokens, (1, 0), value=511), sizes + 1)
        return lossy(out, tokens, out_lengths, sizes)

    return training(model, loss_of)


def speaker(batch: int = 32, frames: int = 300) -> Step:
    from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
    from speechbrain.nnet.losses import AdditiveAngularMargin, LogSoftmaxWrapper

    model = nn.ModuleList([ECAPA_TDNN(80, lin_neurons=192), Classifier(192, out_neurons=5994)]).cuda()
    lossy = LogSoftmaxWrapper(AdditiveAngularMargin(margin=0.2, scale=30))
    labels = torch.randint(5994, (batch, 1)).cuda()
    return training(model, lambda: lossy(model[1](model[0](torch.randn(batch, frames, 80, device="cuda"))), labels))


def separator(batch: int = 2, samples: int = 16000) -> Step:
    from speechbrain.lobes.models.dual_path import Decoder, Dual_Path_Model, Encoder, SBTransformerBlock

    def block() -> nn.Module:
        return SBTransformerBlock(num_layers=2, d_model=128, nhead=8, d_ffn=512, norm_before=True)

    encoder, decoder = (
        Encoder(kernel_size=16, out_channels=128),
        Decoder(in_channels=128, out_channels=1, kernel_size=16, stride=8, bias=False),
    )
    masker = Dual_Path_Model(
        in_channels=128, out_channels=128, intra_model=block(), inter_model=block(), num_layers=2, norm="ln", K=100, num_spks=2
    )
    model = nn.ModuleList([encoder, masker, decoder]).cuda().train()

    def loss_of() -> torch.Tensor:
        mix = torch.randn(batch, samples, device="cuda")
        hidden = encoder(mix)
        found = torch.stack([decoder(hidden * mask) for mask in masker(hidden)], -1)
        return (found[:, :samples].sum(-1) - mix[:, : found.shape[1]]).pow(2).mean()

    return training(model, loss_of)


# -- transformers: detectors, segments, series, states --------------------------------------------------------------------------


def detr(batch: int = 4, height: int = 640, width: int = 800) -> Step:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    config = DetrConfig(
        backbone_config=ResNetConfig(out_features=["stage4"]), use_timm_backbone=False, backbone=None, num_labels=91
    )
    model = DetrForObjectDetection(config).cuda().train()
    draw = torch.Generator().manual_seed(0)
    counts = [3 + 5 * number for number in range(batch)]
    labels = [
        {"class_labels": torch.randint(91, (count,), generator=draw).cuda(), "boxes": torch.rand(count, 4, generator=draw).cuda()}
        for count in counts
    ]

    def loss_of() -> torch.Tensor:
        images, mask = torch.randn(batch, 3, height, width, device="cuda"), torch.ones(batch, height, width, device="cuda").long()
        return model(pixel_values=images, pixel_mask=mask, labels=labels).loss

    return training(model, loss_of)


def segmenter(batch: int = 8, side: int = 512) -> Step:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    model = SegformerForSemanticSegmentation(
        SegformerConfig(num_labels=150, depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512])
    ).cuda()
    labels = torch.randint(150, (batch, side, side)).cuda()

    def loss_of() -> torch.Tensor:
        with half():
            return model(pixel_values=torch.randn(batch, 3, side, side, device="cuda"), labels=labels).loss

    return training(model, loss_of)


def series(batch: int = 128, length: int = 512) -> Step:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(
        num_input_channels=21, context_length=length, prediction_length=96, patch_length=16, patch_stride=8, d_model=128
    )
    model = PatchTSTForPrediction(config).cuda().train()

    def loss_of() -> torch.Tensor:
        past, future = torch.randn(batch, length, 21, device="cuda"), torch.randn(batch, 96, 21, device="cuda")
        return model(past_values=past, future_values=future).loss

    return training(model, loss_of)


def optical_flow(batch: int = 2, height: int = 368, width: int = 496) -> Step:
    import torchvision

    model = torchvision.models.optical_flow.raft_large(weights=None).cuda().train()

    def loss_of() -> torch.Tensor:
        first, second = (torch.rand(batch, 3, height, width, device="cuda") * 2 - 1 for _ in range(2))
        flows, target = model(first, second, num_flow_updates=8), torch.randn(batch, 2, height, width, device="cuda")
        return sum(0.8 ** (len(flows) - number) * (flow - target).abs().mean() for number, flow in enumerate(flows))

    return training(model, loss_of)


def embedder(batch: int = 256, length: int = 64) -> Step:
    """Contrast of pairs in small parts, at two widths of embeddings."""
    from sentence_transformers import SentenceTransformer, losses
    from sentence_transformers.models import Pooling
    from transformers import BertConfig, BertModel

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.auto_model = BertModel(BertConfig(num_hidden_layers=6), add_pooling_layer=False)

        def forward(self, features: dict) -> dict:
            found = self.auto_model(input_ids=features["input_ids"], attention_mask=features["attention_mask"])
            return {**features, "token_embeddings": found.last_hidden_state}

    model = SentenceTransformer(modules=[Words(), Pooling(768)], device="cuda").train()
    lossy = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), matryoshka_dims=[768, 256, 64])
    rows = [
        {
            "input_ids": torch.randint(30522, (batch, length)).cuda(),
            "attention_mask": torch.ones(batch, length, dtype=torch.long).cuda(),
        }
        for _ in range(2)
    ]
    return training(model, lambda: lossy([dict(row) for row in rows], None))


ROWS: dict[str, Callable[[], Step]] = {
    "timm_convnext_averaged": partial(timm_model, "convnext_tiny", 64, 224, averages=True, drop_path_rate=0.1),
    "timm_swin_lamb": partial(timm_model, "swin_small_patch4_window7_224", 48, 224, "lamb"),
    "timm_efficientnet_rmsprop": partial(timm_model, "efficientnet_b2", 64, 260, "rmsproptf"),
    "timm_vit_dropped_patches": partial(timm_model, "vit_base_patch16_224", 96, 224, patch_drop_rate=0.5),
    "diffusers_unet": partial(denoiser, 16, 64),
    "diffusers_unet_checkpointed": partial(denoiser, 32, 64, checkpointing=True),
    "diffusers_autoencoder": partial(autoencoder_kl, 4, 256),
    "diffusers_sd3_lora": partial(rectified_flow, 8, 64),
    "peft_dora": partial(adapted, "dora"),
    "peft_vera": partial(adapted, "vera"),
    "peft_ia3": partial(adapted, "ia3"),
    "peft_prompt": partial(adapted, "prompt"),
    "peft_prefix": partial(adapted, "prefix"),
    "peft_loha": partial(adapted, "loha"),
    "peft_adalora": partial(adapted, "adalora"),
    "composer_glu_bert": composed,
    "litgpt_moe": litgpt_moe,
    "x_transformers": x_transformer,
    "pyg_gatv2": partial(graph, "gatv2"),
    "pyg_pna": partial(graph, "pna", 20_000, 200_000),
    "pyg_sage_jk": partial(graph, "sage_jk"),
    "pyg_transformer": partial(graph, "transformer"),
    "pyg_molecules": molecules,
    "esm2": protein,
    "torchaudio_transducer": transducer,
    "speechbrain_speaker": speaker,
    "speechbrain_separator": separator,
    "detr": detr,
    "segformer": segmenter,
    "patchtst": series,
    "raft": optical_flow,
    "sentence_matryoshka": embedder,
}


def build(name: str) -> Step:
    torch.manual_seed(0)
    return ROWS[name]()


def predict(name: str) -> dict:
    return predicted_steps(partial(build, name), STEPS)


def measure(name: str, trace: pathlib.Path | None) -> dict:
    return measured_steps(partial(build, name), STEPS, trace and trace / f"{name}.gz")


SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=tuple(ROWS),
    place=lambda name: (name, "0 of 1"),
    predict=predict,
    measure=measure,
    choose=lambda names: names or list(ROWS),
    heading=(
        "Families of libraries that were not tried before, predicted without a GPU before anything was measured, then run on an "
        "H200: `python benchmarks/blind/families_blind.py`. MiB.",
    ),
    footing=(
        "",
        "`litgpt_moe`: a mask with a part for each expert was taken to select every token. `patchtst`: cuDNN's batch norm keeps a "
        "contiguous copy of an input that is turned. By the rules that these two led to (afterwards, not blind) the predictions "
        "are 3,322.6 (-0.40%) and 5,102.1 MiB (0.00%), reserved 3,380 (-1.40%) and 5,566 (-0.04%).",
    ),
    limit_s=600,
)


if __name__ == "__main__":
    main(SIDES, __doc__.splitlines()[0])
