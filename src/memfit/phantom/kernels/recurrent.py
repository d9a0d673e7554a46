"""Recurrent layers as cuDNN runs them: all steps, layers and directions in one call.

::

    lstm, gru, rnn_tanh, rnn_relu ──> _cudnn_rnn            output, last states, and what backward needs ("reserve")
                                      _cudnn_rnn_backward   gradients; those of the weights are views of one buffer

Facts from ATen/native/cudnn/RNN.cpp; sizes measured on an H200 with cuDNN 9.19 (truth/kernel_memory.json in benchmarks). Where
cuDNN is switched off, torch runs a fused kernel a step, as it does here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memfit.phantom.target import Target
from memfit.torch_compat.cuda import is_cudnn_enabled
from memfit.torch_compat.patches import Patches

aten = torch.ops.aten
Kernel = Callable[..., Any]

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
"""cuDNN's numbers for the kinds of cells."""

GATES = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 4, GRU: 3}
CUDNN_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLATTENED_TYPES = (torch.float16, torch.float32, torch.float64)
"""Those for which ``nn.RNNBase`` keeps its weights in one block: torch/backends/cudnn."""


def lstm(target: Target) -> Kernel:
    def run(x: torch.Tensor, hx: list[torch.Tensor], params: Any, *settings: Any) -> Any:
        if not _takes(x):
            return aten.lstm.input.decompose(x, hx, params, *settings)
        return _call(LSTM, x, hx[0], hx[1], params, settings)[:3]

    return run


def lstm_packed(target: Target) -> Kernel:
    def run(x: torch.Tensor, sizes: torch.Tensor, hx: list[torch.Tensor], params: Any, *settings: Any) -> Any:
        if not _takes(x):
            return aten.lstm.data.decompose(x, sizes, hx, params, *settings)
        return _call(LSTM, x, hx[0], hx[1], params, (*settings, False), sizes.tolist())[:3]

    return run


def simple(mode: int, operator: Any) -> Callable[[Target], Kernel]:
    """For cells with one state."""

    def make(target: Target) -> Kernel:
        def run(x: torch.Tensor, hx: torch.Tensor, params: Any, *settings: Any) -> Any:
            if not _takes(x):
                return operator.decompose(x, hx, params, *settings)
            return _call(mode, x, hx, None, params, settings)[:2]

        return run

    return make


def simple_packed(mode: int, operator: Any) -> Callable[[Target], Kernel]:
    def make(target: Target) -> Kernel:
        def run(x: torch.Tensor, sizes: torch.Tensor, hx: torch.Tensor, params: Any, *settings: Any) -> Any:
            if not _takes(x):
                return operator.decompose(x, sizes, hx, params, *settings)
            return _call(mode, x, hx, None, params, (*settings, False), sizes.tolist())[:2]

        return run

    return make


def _takes(x: torch.Tensor) -> bool:
    return x.dtype in CUDNN_TYPES and is_cudnn_enabled()


def _call(mode: int, x: torch.Tensor, hx: torch.Tensor, cx: Any, params: Any, settings: Any, batch_sizes: Any = ()) -> Any:
    has_biases, num_layers, dropout, train, bidirectional, batch_first = settings
    proj_size = hx.shape[2] if cx is not None and cx.shape[2] != hx.shape[2] else 0
    hidden_size = cx.shape[2] if cx is not None else hx.shape[2]
    per_layer = (4 if has_biases else 2) + bool(proj_size)
    return aten._cudnn_rnn(
        x, params, per_layer, None, hx, cx, mode, hidden_size, proj_size, num_layers, batch_first, dropout, train, bidirectional,
        list(batch_sizes), None,
    )  # fmt: skip


Cast = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def in_autocast(cast: Cast) -> Kernel:
    """Under autocast cuDNN runs in float16, whatever the type of the context; weights are cast into a flat block of their own."""

    def run(x: torch.Tensor, weights: list[torch.Tensor], stride: int, buffer: Any, hx: Any, cx: Any, *settings: Any) -> Any:
        half = torch.float16
        flat = weights if weights[0].dtype == half else _cast_flat(weights, half)
        # Arguments are evaluated from the last to the first, as in autocast.py.
        cx = None if cx is None else cast(cx, half)
        hx = cast(hx, half)
        return aten._cudnn_rnn(cast(x, half), flat, stride, buffer, hx, cx, *settings)

    return run


def _cast_flat(weights: list[torch.Tensor], dtype: torch.dtype) -> list[torch.Tensor]:
    flat = weights[0].new_empty((sum(weight.numel() for weight in weights),), dtype=dtype)
    start, copies = 0, []
    for weight in weights:
        with torch.no_grad():
            copy: Any = flat.new_empty((0,))
            copy.set_(flat[start : start + weight.numel()].view(weight.shape))
        copies.append(copy.copy_(weight))
        start += weight.numel()
    return copies


# -- shapes --------------------------------------------------------------------------------------------------------------------


def answers() -> dict[Any, Callable[..., Any]]:
    """What the operators return, where torch does not tell, or tells less than cuDNN allocates."""
    return {
        aten._cudnn_rnn.default: _forward,
        aten._cudnn_rnn_backward.default: _backward,
        aten._thnn_fused_gru_cell.default: _gru_cell,
        aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    }


def _forward(
    x: torch.Tensor, weights: list[torch.Tensor], stride: int, buffer: Any, hx: torch.Tensor, cx: Any, mode: int, *settings: Any
) -> Any:
    hidden, projected, layers, batch_first, _, train, both_ways, batch_sizes, _ = settings
    ways, out = 1 + both_ways, projected or hidden
    batch = batch_sizes[0] if batch_sizes else x.shape[0 if batch_first else 1]
    output = x.new_empty((*x.shape[:-1], ways * out))
    hy = hx.new_empty((layers * ways, batch, out))
    cy = x.new_empty((0,)) if cx is None else cx.new_empty((layers * ways, batch, hidden))
    reserve = x.new_empty((Sizes.of(x, mode, settings).reserve_bytes if train else 0,), dtype=torch.uint8)
    if buffer is None:
        buffer = x.new_empty((sum(weight.numel() for weight in weights),)) if not _is_flat(weights) else _flat_view(weights)
    return output, hy, cy, reserve, buffer


def _is_flat(weights: list[torch.Tensor]) -> bool:
    return len({weight.untyped_storage()._cdata for weight in weights}) == 1


def _flat_view(weights: list[torch.Tensor]) -> torch.Tensor:
    return weights[0].as_strided((sum(weight.numel() for weight in weights),), (1,), 0)


def _backward(x: torch.Tensor, weights: list[torch.Tensor], stride: int, buffer: torch.Tensor, hx: Any, cx: Any, *rest: Any) -> Any:
    """Gradients of the states are made whether or not anybody wants them."""
    wants_x, _, _, wants_weights = rest[-1]
    grads: list[torch.Tensor] = []
    if wants_weights and _has_biases(weights):
        flat, start = x.new_empty(buffer.shape), 0
        for weight in weights:
            grads.append(flat[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
    elif wants_weights:  # cuDNN writes biases all the same, so they are taken out of its block
        grads = [x.new_empty(weight.shape) for weight in weights]
    states = [None if state is None else state.new_empty(state.shape) for state in (hx, cx)]
    return (x.new_empty(x.shape) if wants_x else None, *states, grads)


def _has_biases(weights: list[torch.Tensor]) -> bool:
    return any(weight.dim() == 1 for weight in weights)


def _gru_cell(input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *biases: Any) -> Any:
    """ATen/native/cuda/RNN.cu: keeps five values a hidden unit for backward."""
    return hx.new_empty(hx.shape), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Any:
    rows, hidden = workspace.shape[0], workspace.shape[1] // 5
    gates = [workspace.new_empty((rows, 3 * hidden)) for _ in range(2)]
    biases = [workspace.new_empty((3 * hidden,)) for _ in range(2)] if has_bias else [None, None]
    return (*gates, grad_hy.new_empty(grad_hy.shape), *biases)


# -- sizes ---------------------------------------------------------------------------------------------------------------------

KEPT_FOR_BACKWARD = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 5, GRU: 6}
"""Values that a cell keeps for every hidden unit and step."""

ROWS_OF_WORKSPACE = {RNN_RELU: 0.27, RNN_TANH: 0.27, LSTM: 1.66, GRU: 0.58}
"""What more than one layer adds to a workspace, in copies of a layer's output; see ``workspace_bytes``."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call of ``_cudnn_rnn``."""

    mode: int
    steps_times_batch: int
    hidden: int
    projected: int
    layers: int
    ways: int
    drops: bool
    itemsize: int

    @classmethod
    def of(cls, x: torch.Tensor, mode: int, settings: Any) -> Sizes:
        hidden, projected, layers, _, dropout, train, both_ways = settings[:7]
        rows = x.numel() // x.shape[-1]
        return cls(mode, rows, hidden, projected, layers, 1 + both_ways, bool(dropout and train), x.element_size())

    @property
    def layer_output(self) -> int:
        return self.steps_times_batch * self.hidden * self.itemsize

    @property
    def reserve_bytes(self) -> int:
        """What all cells keep, the outputs between layers, a bit for each of them if there is dropout, and a head."""
        between = (self.layers - 1) * self.ways * self.layer_output
        kept = KEPT_FOR_BACKWARD[self.mode] * self.layers * self.ways * self.layer_output
        if self.projected:
            kept += self.layers * self.ways * self.layer_output * (self.hidden + self.projected) // self.hidden
        dropped = between // self.itemsize // 8 if self.drops else 0
        return 256 + sum(-(-part // 32) * 32 for part in (kept, between, dropped))

    def workspace_bytes(self, weights: int) -> int:
        """The weights once more and some copies of a layer's output: a fit to measurements, within a tenth of them."""
        copies = 6 if self.itemsize >= 4 else 8
        more = (ROWS_OF_WORKSPACE[self.mode] if self.layers > 1 else 0.0) + 2 * (self.ways - 1)
        return weights + int((copies + more) * self.ways * self.layer_output) + 512


def workspace(target: Target, args: Any, result: Any) -> Sequence[int]:
    """While ``_cudnn_rnn`` runs."""
    x, weights = args[0], args[1]
    return (*_turned(x, args[10]), _workspace_bytes(x, weights, args[6], args[7:]))


def backward_workspace(target: Target, args: Any, result: Any) -> Sequence[int]:
    """While ``_cudnn_rnn_backward`` runs."""
    x, weights, buffer = args[0], args[1], args[3]
    apart = 0 if _has_biases(weights) else buffer.numel() * buffer.element_size()
    return (*_turned(x, args[14]), apart, _workspace_bytes(x, weights, args[10], args[11:]))


def _turned(x: torch.Tensor, batch_first: bool) -> tuple[int, ...]:
    """cuDNN wants the steps first."""
    return (x.numel() * x.element_size(),) if batch_first else ()


def _workspace_bytes(x: torch.Tensor, weights: list[torch.Tensor], mode: int, settings: Any) -> int:
    matrices = sum(weight.numel() * weight.element_size() for weight in weights if weight.dim() > 1)
    return Sizes.of(x, mode, settings).workspace_bytes(matrices)


THREADS_A_SM, GENERATOR_BYTES = 2048, 24


def dropout_state_bytes(target: Target) -> int:
    """cuDNN keeps a generator of random numbers for every thread the GPU can run, once it needs any."""
    return target.gpu.num_sms * THREADS_A_SM * GENERATOR_BYTES


# -- weights -------------------------------------------------------------------------------------------------------------------


def install(patches: Patches) -> None:
    patches.replace(nn.RNNBase, "flatten_parameters", _flatten_parameters)


def _flatten_parameters(layer: nn.RNNBase) -> None:
    """cuDNN wants all weights in one block: torch moves them there when the layer comes to the GPU."""
    weights: Any = layer._flat_weights
    if len(weights) != len(layer._flat_weights_names) or not all(isinstance(weight, torch.Tensor) for weight in weights):
        return
    types = {weight.dtype for weight in weights}
    if len(types) > 1 or not types <= set(FLATTENED_TYPES) or not all(weight.is_cuda for weight in weights) or _is_flat(weights):
        return
    with torch.no_grad():
        flat = weights[0].new_empty((sum(weight.numel() for weight in weights),))
        start = 0
        for weight in weights:
            weight.set_(flat[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
