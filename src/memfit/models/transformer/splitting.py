"""How the transformer is split over GPUs.

::

    embedding         by rows of the vocabulary; what it gives is cut along the sequence
    norms             each GPU normalises its part of the sequence
    attention, MLP    gather the sequence; queries, keys, values, gate and up by heads and columns, output and down by rows
    experts           each GPU sends the tokens of its part of the sequence; no expert is cut
    head              by columns of the vocabulary; the loss is computed on the parts
"""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, PrepareModuleInput, RowwiseParallel, SequenceParallel

from memfit.models.config import ModelConfig
from memfit.models.transformer.experts import RoutedExperts, SwiGLU
from memfit.models.transformer.model import Transformer
from memfit.parallel import ModelLayout


def layout_of(model: Transformer) -> ModelLayout:
    """What ``memfit.parallel.parallelize`` has to know of it."""
    config = model.config
    return ModelLayout(
        blocks="blocks",
        first=("embedding", "positions"),
        last=("norm", "head"),
        width=config.dim,
        outputs=config.vocab,
        tensor=_styles(model, config),
        experts="blocks.*.mlp.routed" if config.num_experts else "",
        share_experts=_share_experts,
        in_float8=lambda module, name: "head" not in name and "router" not in name,
        tell_shards=lambda part, num_shards: setattr(part, "hidden_parts", num_shards),
        tell_positions=_tell_positions,
    )


def _share_experts(module: nn.Module, group: ProcessGroup) -> None:
    cast(RoutedExperts, module).group = group


def _tell_positions(part: nn.Module, positions: Tensor) -> None:
    cast(Transformer, part).positions_here = positions


def _styles(model: Transformer, config: ModelConfig) -> dict[str, ParallelStyle]:
    styles: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1)),
        "blocks.*.attention_norm": SequenceParallel(),
        "blocks.*.mlp_norm": SequenceParallel(use_local_output=True),
        "blocks.*.attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        **(_latent_styles() if config.latent else {}),
        **{f"blocks.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value", "key_value")},
        "blocks.*.attention.output": RowwiseParallel(output_layouts=Shard(1)),
    }
    for name, module in model.named_modules():
        if name.endswith(".mlp"):
            styles |= {
                f"{name}{rest}": style for rest, style in (_dense() if isinstance(module, SwiGLU) else _with_experts()).items()
            }
    if config.qk_norm:  # on heads, each GPU on its own
        styles |= {f"blocks.*.attention.{name}": _Whole(Shard(1), local=True) for name in ("query_norm", "key_norm")}
    return styles


def _dense() -> dict[str, ParallelStyle]:
    return {
        "": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        ".gate": ColwiseParallel(),
        ".up": ColwiseParallel(),
        ".down": RowwiseParallel(output_layouts=Shard(1)),
    }


def _with_experts() -> dict[str, ParallelStyle]:
    """Each GPU has its own tokens, one after another."""
    return {f".{name}": _Whole(Shard(0), local=True) for name in ("router", "shared.gate", "shared.up", "shared.down")}


def _latent_styles() -> dict[str, ParallelStyle]:
    """What is made before there are heads, every GPU makes of the whole sequence."""
    names = ("query_down", "query_norm", "key_value_down", "key_value_norm")
    return {f"blocks.*.attention.{name}": _Whole(Replicate(), local=False) for name in names}


class _Whole(ParallelStyle):
    """Every GPU has the whole weights, for inputs that are placed as told; their gradients are summed where inputs are parts."""

    def __init__(self, placement: Placement, *, local: bool) -> None:
        super().__init__()
        self.placement, self.local = placement, local

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def share(name: str, part: nn.Module, mesh: DeviceMesh) -> None:
            for each, weight in list(part.named_parameters(recurse=False)):
                part.register_parameter(each, nn.Parameter(distribute_tensor(weight, mesh, [Replicate()])))

        def place(part: nn.Module, inputs: tuple[Tensor, ...], mesh: DeviceMesh) -> Tensor:
            x = inputs[0]
            return x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [self.placement], run_check=False)

        def give(part: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:
            return output.to_local() if self.local else output

        # Torch's annotations forget that both give what takes the place of inputs and outputs.
        return distribute_module(module, device_mesh, share, cast(Any, place), cast(Any, give))
