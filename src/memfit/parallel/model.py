"""What ``parallelize`` gives: one rank's share of a model, and how a step goes through it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import loss_parallel

from memfit.errors import ConfigError
from memfit.parallel.config import Parallelism
from memfit.parallel.layout import ModelLayout
from memfit.parallel.meshes import Meshes

Loss = Callable[[Tensor, Tensor], Tensor]
"""``loss(outputs, labels)``: of one batch, or of one microbatch."""


@dataclass(kw_only=True, eq=False)
class ParallelModel:
    """This rank's share. Every rank of a pipeline, of a sequence and of a layer is given the same batch."""

    parts: list[nn.Module]
    """The model, or this rank's stages of it."""
    numbers: list[int]
    """Which stages those are."""
    layout: ModelLayout
    wanted: Parallelism
    meshes: Meshes
    loss: Loss
    hidden_dtype: torch.dtype
    """Of what goes from stage to stage."""
    after_step: Callable[[], None] = lambda: None
    """To be called when the optimizer has changed the weights."""
    _schedule: Any = field(default=None, init=False, repr=False)

    def forward_backward(self, tokens: Tensor, labels: Tensor) -> Tensor | None:
        """Computes gradients; gives the loss where this rank has the last stage.

        ``tokens`` and ``labels`` have one row for each sequence, and are changed where context parallelism cuts them.
        """
        with self._around_a_step(tokens, labels):
            if self.meshes.pp is not None:
                return self._through_the_pipeline(tokens, labels)
            loss = self._loss(self.parts[0](tokens), labels)
            loss.backward()
            return loss.detach()

    def parameters(self) -> Iterator[nn.Parameter]:
        for part in self.parts:
            yield from part.parameters()

    def parameter_groups(self) -> list[dict[str, list[nn.Parameter]]]:
        """For an optimizer: parameters on one mesh together, because torch's fused loops want them so."""
        groups: dict[Any, list[nn.Parameter]] = {}
        for parameter in self.parameters():
            if parameter.requires_grad:
                groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
        return [{"params": group} for group in groups.values()]

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Clips gradients to a norm over all ranks, whatever mesh they are on."""
        gradients = [[p.grad for p in group["params"] if p.grad is not None] for group in self.parameter_groups()]
        norms = [_whole(nn.utils.get_total_norm(found)) for found in gradients if found]
        device = norms[0].device if norms else torch.device(self.meshes.shard.device_type)
        total = torch.stack(norms).square().sum() if norms else torch.zeros((), device=device)
        if self.meshes.pp is not None:
            dist.all_reduce(total, group=self.meshes.pp.get_group())
        norm = total.sqrt()
        for group in self.parameter_groups():
            nn.utils.clip_grads_with_norm_(group["params"], max_norm, norm)
        return norm

    # -- one step ------------------------------------------------------------------------------------------------------------------

    def _loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.meshes.tp is not None:
            outputs = DTensor.from_local(outputs, self.meshes.tp, [Shard(-1)], run_check=False)
        return self.loss(outputs, labels)

    def _around_a_step(self, tokens: Tensor, labels: Tensor) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(self._sequences_cut(tokens, labels))
        if self.meshes.tp is not None:
            stack.enter_context(loss_parallel())
        # The local part of logits is a view, and so is what compiled blocks give: nothing writes into them.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        return stack

    def _sequences_cut(self, tokens: Tensor, labels: Tensor) -> AbstractContextManager[Any]:
        """Each rank of the cp axis gets its part of the sequences, and attention passes keys and values around."""
        if self.meshes.cp is None:
            return nullcontext()
        if self.layout.tell_positions is None:
            raise ConfigError(
                "this model cannot be told which positions a rank has: context parallelism needs ModelLayout.tell_positions"
            )
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        for part in self.parts:
            self.layout.tell_positions(part, positions)
        cut = [tokens, labels, positions]
        return context_parallel(self.meshes.cp, buffers=cut, buffer_seq_dims=[1, 1, 0], no_restore_buffers=set(cut))

    def _through_the_pipeline(self, tokens: Tensor, labels: Tensor) -> Tensor | None:
        if self._schedule is None:
            self._schedule = self._make_schedule(tokens)
        losses: list[Tensor] = []
        is_last = self.wanted.num_stages - 1 in self.numbers
        last = {"target": labels, "losses": losses} if is_last else {}
        self._schedule.step(*((tokens,) if 0 in self.numbers else ()), **last)
        return torch.stack([_whole(loss.detach()) for loss in losses]).mean() if losses else None

    def _make_schedule(self, tokens: Tensor) -> Any:
        """When the shapes are known: then no stage has to ask another what it will send."""
        kind = get_schedule_class(self.wanted.schedule_row.torch_name)
        stages = [self._stage(part, number, tokens) for part, number in zip(self.parts, self.numbers, strict=True)]
        is_multiple = issubclass(kind, PipelineScheduleMulti)
        return kind(stages if is_multiple else stages[0], self.wanted.microbatches, loss_fn=self._loss)

    def _stage(self, part: nn.Module, number: int, tokens: Tensor) -> PipelineStage:
        assert self.meshes.pp is not None
        size, length = tokens.shape[0] // self.wanted.microbatches, tokens.shape[1]
        learned: dict[str, Any] = {"dtype": self.hidden_dtype, "device": "meta", "requires_grad": True}
        # Torch 2.11 compares strides, too, and the tokens may be a part of longer sequences.
        given = torch.empty_strided((size, length), tokens.stride(), dtype=tokens.dtype, device="meta")
        hidden = torch.empty(size, length // self.wanted.tp, self.layout.width, **learned)
        outputs = torch.empty(size, length, self.layout.outputs // self.wanted.tp, **learned)
        return PipelineStage(
            part,
            number,
            self.wanted.num_stages,
            tokens.device,
            input_args=(given if number == 0 else hidden,),
            output_args=(outputs if number == self.wanted.num_stages - 1 else hidden,),
            group=self.meshes.pp.get_group(),
        )


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
