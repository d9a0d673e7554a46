"""Recurrent layers as cuDNN runs them: all steps, layers and directions in one call.

::

    lstm, gru, rnn_tanh, rnn_relu ──> _cudnn_rnn            output, last states, and what backward needs ("reserve")
                                      _cudnn_rnn_backward   gradients; those of the weights are views of one buffer

Facts from ATen/native/cudnn/RNN.cpp; sizes measured on an H200 with cuDNN 9.19 (benchmarks/truth/kernel_memory.json). Where cuDNN
is switched off, torch runs one fused kernel for each step, and so does the phantom.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from memfit.phantom.kernels.reduction import partial_bytes, staging_blocks
from memfit.phantom.kernels.rule import MEASURED_CUDNN, Arguments, Kept, Kernel, ResultPlace, Rule, TakenBlocks
from memfit.phantom.target import Target
from memfit.torch_compat.devices import is_cudnn_enabled
from memfit.torch_compat.patches import Patches
from memfit.units import MIB

aten = torch.ops.aten

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
"""cuDNN's numbers for the kinds of cells."""

CUDNN_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FLATTENED_TYPES = (torch.float16, torch.float32, torch.float64)
"""Those for which ``nn.RNNBase`` keeps its weights in one block: torch/backends/cudnn."""


def _lstm(target: Target) -> Kernel:
    """`_cudnn_rnn`, if cuDNN is switched on and supports the type; otherwise a kernel for each step."""

    def run(x: torch.Tensor, hx: list[torch.Tensor], params: Any, *settings: Any) -> Any:
        if not _takes(x):
            return aten.lstm.input.decompose(x, hx, params, *settings)
        return _call(LSTM, x, hx[0], hx[1], params, settings)[:3]

    return run


def _lstm_packed(target: Target) -> Kernel:
    """`_cudnn_rnn`, if cuDNN is switched on and supports the type; otherwise a kernel for each step."""

    def run(x: torch.Tensor, sizes: torch.Tensor, hx: list[torch.Tensor], params: Any, *settings: Any) -> Any:
        if not _takes(x):
            return aten.lstm.data.decompose(x, sizes, hx, params, *settings)
        return _call(LSTM, x, hx[0], hx[1], params, (*settings, False), sizes.tolist())[:3]

    return run


def _one_state(mode: int, operator: Any) -> Callable[[Target], Kernel]:
    """For cells with one state, as GRU and RNN have."""

    def make(target: Target) -> Kernel:
        """`_cudnn_rnn`, if cuDNN is switched on and supports the type; otherwise a kernel for each step."""

        def run(x: torch.Tensor, hx: torch.Tensor, params: Any, *settings: Any) -> Any:
            if not _takes(x):
                return operator.decompose(x, hx, params, *settings)
            return _call(mode, x, hx, None, params, settings)[:2]

        return run

    return make


def _one_state_packed(mode: int, operator: Any) -> Callable[[Target], Kernel]:
    def make(target: Target) -> Kernel:
        """`_cudnn_rnn`, if cuDNN is switched on and supports the type; otherwise a kernel for each step."""

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
    """Under autocast cuDNN runs in float16, whatever type autocast has; the weights are cast into one new block."""

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


def _forward(
    x: torch.Tensor, weights: list[torch.Tensor], stride: int, buffer: Any, hx: torch.Tensor, cx: Any, mode: int, *settings: Any
) -> Any:
    """Output, last states, what is kept for backward ("reserve"), and the weights in one block."""
    hidden, projected, layers, batch_first, _, train, both_ways, batch_sizes, _ = settings
    ways, out = 1 + both_ways, projected or hidden
    batch = batch_sizes[0] if batch_sizes else x.shape[0 if batch_first else 1]
    output = _like_steps(x, ways * out, batch_first and not batch_sizes)
    hy = hx.new_empty((layers * ways, batch, out))
    cy = x.new_empty((0,)) if cx is None else cx.new_empty((layers * ways, batch, hidden))
    reserve = x.new_empty((Sizes.of(x, mode, settings).reserve_bytes if train else 0,), dtype=torch.uint8)
    if buffer is None:
        buffer = x.new_empty((sum(weight.numel() for weight in weights),)) if not _is_flat(weights) else _flat_view(weights)
    return output, hy, cy, reserve, buffer


def _like_steps(x: torch.Tensor, width: int, batch_first: bool) -> torch.Tensor:
    """For all steps and sequences of ``x``; where the batch comes first, its memory has the steps first all the same."""
    if not batch_first:
        return x.new_empty((*x.shape[:-1], width))
    batch, steps, _ = x.shape
    return x.new_empty((steps, batch, width)).transpose(0, 1)


def _is_flat(weights: list[torch.Tensor]) -> bool:
    return len({weight.untyped_storage()._cdata for weight in weights}) == 1


def _flat_view(weights: list[torch.Tensor]) -> torch.Tensor:
    return weights[0].as_strided((sum(weight.numel() for weight in weights),), (1,), 0)


def _backward(x: torch.Tensor, weights: list[torch.Tensor], stride: int, buffer: torch.Tensor, hx: Any, cx: Any, *rest: Any) -> Any:
    """Gradients of input, states (also where they are not wanted) and weights, the last as views of one block."""
    wants_x, _, _, wants_weights = rest[-1]
    grads: list[torch.Tensor] = []
    if wants_weights and _has_biases(weights):
        flat, start = x.new_empty(buffer.shape), 0
        for weight in weights:
            grads.append(flat[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
    elif wants_weights:  # cuDNN writes gradients of biases even so, and torch copies those of the weights out of its block
        grads = [x.new_empty(weight.shape) for weight in weights]
    states = [None if state is None else state.new_empty(state.shape) for state in (hx, cx)]
    return (_like_steps(x, x.shape[-1], rest[8] and not rest[12]) if wants_x else None, *states, grads)


def _has_biases(weights: list[torch.Tensor]) -> bool:
    return any(weight.dim() == 1 for weight in weights)


def _gru_cell(input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *biases: Any) -> Any:
    """The new state, and five values for each hidden unit, for backward."""
    return hx.new_empty(hx.shape), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> Any:
    """Gradients of both sets of gates, of the state, and of the biases."""
    rows, hidden = workspace.shape[0], workspace.shape[1] // 5
    gates = [workspace.new_empty((rows, 3 * hidden)) for _ in range(2)]
    biases = [workspace.new_empty((3 * hidden,)) for _ in range(2)] if has_bias else [None, None]
    return (*gates, grad_hy.new_empty(grad_hy.shape), *biases)


def _pack_padded_sequence(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows that are not padding, and on the host how many sequences are left at each step."""
    steps = [int((lengths > step).sum()) for step in range(int(lengths.max()))]
    return x.new_empty((sum(steps), *x.shape[2:])), torch.tensor(steps, device="cpu")


# -- sizes ---------------------------------------------------------------------------------------------------------------------

KEPT_FOR_BACKWARD = {RNN_RELU: 1, RNN_TANH: 1, LSTM: 5, GRU: 6}
"""Values that a cell keeps for every hidden unit and step."""

WORKSPACE_OF_LAYER = 8 * MIB
"""For each layer and direction, whatever its size."""
ROWS_OF_LAYER = {RNN_RELU: (5, 7), RNN_TANH: (5, 7), LSTM: (10, 12), GRU: (5, 7)}
"""And values for each hidden unit of a batch: (in one direction, in two)."""

PACKED_ROWS_OF_LAYER = 6
"""The same for packed sequences of an LSTM in one direction with few steps, read off 25 layers
(benchmarks/truth/packed_recurrent.json). Other packed layers are taken to be like those that are not, up to 1.8 times too much."""

LONG = 512
"""From this many steps on, one layer at a time is worked on (between 257 and 512)."""

Line = tuple[int, int]
"""Values for each step and sequence, as multiples of (the hidden size, the input size)."""
STANDARD: dict[int, tuple[tuple[Line, Line], tuple[Line, Line]]] = {
    RNN_RELU: (((4, 2), (3, 3)), ((10, 2), (6, 6))),
    RNN_TANH: (((4, 2), (3, 3)), ((10, 2), (6, 6))),
    LSTM: (((5, 1), (3, 3)), ((14, 1), (6, 6))),
    GRU: (((4, 2), (3, 3)), ((12, 1), (6, 6))),
}
"""Two lines in one direction, two in both: the larger one counts. For inputs wider than the hidden size it is the second."""
PERSISTENT: dict[int, tuple[tuple[Line, Line], tuple[Line, Line]]] = {
    RNN_RELU: (((13, 2), (12, 3)), ((19, 2), (14, 6))),
    RNN_TANH: (((13, 2), (12, 3)), ((19, 2), (14, 6))),
    LSTM: (((21, 1), (15, 3)), ((30, 2), (20, 6))),
    GRU: (((18, 2), (17, 3)), ((24, 2), (20, 6))),
}
"""The same for the kernels that keep their weights on the chip; in bfloat16 they take what the standard ones take."""
MOST_HIDDEN_FORWARD = {RNN_RELU: 384, RNN_TANH: 384, LSTM: 192, GRU: 192}
MOST_HIDDEN_BACKWARD = {RNN_RELU: 256, RNN_TANH: 256, LSTM: 128, GRU: 128}
"""Up to here torch asks for those kernels."""
CHIP_TILE, MOST_HIDDEN_IN_HALVES, BATCH_TILE, MOST_BATCH, LARGE_BATCH, LARGE_HIDDEN = 128, 1024, 8, 128, 96, 896
"""In float16, torch also asks for them for one layer in one direction whose sizes are multiples of such tiles."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call of ``_cudnn_rnn``."""

    mode: int
    steps: int
    batch: int
    rows: int
    """Steps of all sequences; fewer than steps times batch where sequences are packed."""
    inputs: int
    hidden: int
    projected: int
    layers: int
    ways: int
    drops: bool
    dtype: torch.dtype
    is_packed: bool

    @classmethod
    def of(cls, x: torch.Tensor, mode: int, settings: Any) -> Sizes:
        hidden, projected, layers, batch_first, dropout, train, both_ways, batch_sizes = settings[:8]
        rows = x.numel() // max(x.shape[-1], 1)
        batch = batch_sizes[0] if batch_sizes else x.shape[0 if batch_first else 1]
        steps = len(batch_sizes) if batch_sizes else x.shape[1 if batch_first else 0]
        drops = bool(dropout and train)
        return cls(
            mode, steps, batch, rows, x.shape[-1], hidden, projected, layers, 1 + both_ways, drops, x.dtype, bool(batch_sizes)
        )

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def layer_output(self) -> int:
        return self.rows * self.hidden * self.itemsize

    @property
    def reserve_bytes(self) -> int:
        """What all cells keep, the outputs between layers, with dropout a bit for each of those and each direction that reads them
        (also past the ends of packed sequences), and 256 bytes."""
        between = (self.layers - 1) * self.ways * self.layer_output
        kept = KEPT_FOR_BACKWARD[self.mode] * self.layers * self.ways * self.layer_output
        if self.projected:
            kept += self.layers * self.ways * self.layer_output * (self.hidden + self.projected) // self.hidden
        dropped = self.ways**2 * (self.layers - 1) * self.steps * self.batch * self.hidden // 8 if self.drops else 0
        return 256 + sum(-(-part // 32) * 32 for part in (kept, between, dropped))

    def workspace_bytes(self, weights: int, is_forward: bool) -> int:
        """Read off 1,619 layers (benchmarks/kernels/cudnn_on_gpu.py): off by 0.4 % in the median, nine of ten within 5 %."""
        of_layers = self.layers * self.ways
        rows = PACKED_ROWS_OF_LAYER if self._is_short_packed_lstm else ROWS_OF_LAYER[self.mode][self.ways - 1]
        of_batch = rows * self.batch * self.hidden * self.itemsize
        of_steps = max(of_hidden * self.hidden + of_inputs * self.inputs for of_hidden, of_inputs in self._lines(is_forward))
        return of_layers * (WORKSPACE_OF_LAYER + of_batch) + weights + of_steps * self.rows * self.itemsize + 512

    @property
    def _is_short_packed_lstm(self) -> bool:
        return self.is_packed and self.mode == LSTM and self.ways == 1 and self.steps < LONG

    def _lines(self, is_forward: bool) -> tuple[Line, Line]:
        if self._is_short_packed_lstm:
            return (4 + self.drops, 0), (1, 1)
        if self._is_persistent(is_forward) and self.dtype != torch.bfloat16:
            return PERSISTENT[self.mode][self.ways - 1]
        narrow, wide = STANDARD[self.mode][self.ways - 1]
        is_long, is_plain = self.steps >= LONG, self.mode in (RNN_RELU, RNN_TANH)
        if self.ways == 2 and self.layers > 1:
            return (narrow if self.mode == LSTM else (12, 2)), (8, 6)
        if self.ways == 2:
            return narrow, wide
        if self.layers == 1:
            return ((4, 2), wide) if is_long else (narrow, wide)
        if is_long:
            wide = 2, 3
        of_hidden, of_inputs = (3, 2) if is_long or is_plain else (narrow[0], 1)
        return (of_hidden + (self.drops and not is_plain), of_inputs), wide  # what dropout leaves of the outputs between layers

    def _is_persistent(self, is_forward: bool) -> bool:
        """Whether torch asks for kernels that keep their weights on the chip: ``get_algo`` in ATen/native/cudnn/RNN.cpp."""
        if self.projected or self.is_packed or self.dtype == torch.float64:
            return False
        if self.hidden <= (MOST_HIDDEN_FORWARD if is_forward else MOST_HIDDEN_BACKWARD)[self.mode]:
            return True
        is_one = self.layers == 1 and self.ways == 1 and self.dtype == torch.float16 and self.mode != GRU
        fits = self.hidden <= MOST_HIDDEN_IN_HALVES and self.hidden % CHIP_TILE == 0 and self.inputs % CHIP_TILE == 0
        is_slow = self.mode != LSTM and self.batch >= LARGE_BATCH and self.hidden >= LARGE_HIDDEN
        return is_one and fits and self.batch % BATCH_TILE == 0 and self.batch <= MOST_BATCH and not is_slow


def _forward_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """A copy of the input with the steps first, where it has the batch first; cuDNN's workspace, before what backward needs."""
    x, weights = args[0], args[1]
    workspace = _workspace_bytes(x, weights, args[6], args[7:], is_forward=True)
    return (*_steps_first(args[10] and not args[14], x), *map(ResultPlace, (0, 1, 2, 4)), workspace, ResultPlace(3))


def _backward_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Copies of input and gradient with the steps first, where they have the batch first, and cuDNN's workspace; for the weights
    the input and the workspace again, and a block for their gradients where there are no biases."""
    x, weights, buffer = args[0], args[1], args[3]
    apart = 0 if _has_biases(weights) else buffer.numel() * buffer.element_size()
    batch_first = args[14] and not args[18]
    workspace = _workspace_bytes(x, weights, args[10], args[11:], is_forward=False)
    copies = _steps_first(batch_first, x, args[7])
    given_back = range(-1, -len(copies) - 2, -1)
    of_inputs = (*copies, *map(ResultPlace, range(3)), workspace, *given_back)
    return (*of_inputs, *_steps_first(batch_first, x), apart, ResultPlace(3), workspace)


def _lstm_cell_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Nothing; what is kept for backward comes before the states."""
    return ResultPlace(2), ResultPlace(0), ResultPlace(1)


def _gru_cell_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Nothing; what is kept for backward comes before the state."""
    return ResultPlace(1), ResultPlace(0)


def _lstm_cell_backward_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Partial sums over the rows for the gradient of the bias, which is summed up last."""
    gates, _, bias = result
    summed = staging_blocks(target, gates, (0,), partial_bytes(gates)) if bias is not None else ()
    return ResultPlace(0), ResultPlace(1), *([] if bias is None else [ResultPlace(2)]), *summed


def _gru_cell_backward_blocks(target: Target, args: Arguments, result: Any) -> TakenBlocks:
    """Partial sums over the rows for the gradient of one bias, then for that of the other."""
    gates, biases = result[0], result[3:]
    if biases[0] is None:
        return ()
    summed = staging_blocks(target, gates, (0,), partial_bytes(gates))
    given_back = [-place for place in range(len(summed), 0, -1)]
    return (*map(ResultPlace, range(4)), *summed, *given_back, ResultPlace(4), *summed)


def _steps_first(batch_first: bool, *tensors: torch.Tensor | None) -> list[int]:
    """Copies of those whose memory does not have the steps first."""
    ordered = [tensor.transpose(0, 1) if batch_first else tensor for tensor in tensors if tensor is not None]
    return [tensor.numel() * tensor.element_size() for tensor in ordered if not tensor.is_contiguous()]


def _workspace_bytes(x: torch.Tensor, weights: list[torch.Tensor], mode: int, settings: Any, is_forward: bool) -> int:
    matrices = sum(weight.numel() * weight.element_size() for weight in weights if weight.dim() > 1)
    return Sizes.of(x, mode, settings).workspace_bytes(matrices, is_forward)


THREADS_PER_SM, GENERATOR_BYTES = 2048, 24


def dropout_state_bytes(target: Target) -> int:
    """A generator of random numbers for every thread that the GPU can run."""
    return target.gpu.num_sms * THREADS_PER_SM * GENERATOR_BYTES


DROPOUT_STATES = Kept(library="cuDNN", size_bytes=dropout_state_bytes, is_per_thread_and_stream=False)


def _dropout_states(args: Arguments) -> Sequence[Kept]:
    """With dropout, in training: the states of cuDNN's random generators, once in a process."""
    dropout, train = args[11], args[12]
    return (DROPOUT_STATES,) if dropout and train else ()


# -- weights -------------------------------------------------------------------------------------------------------------------


def install(patches: Patches) -> None:
    patches.replace(nn.RNNBase, "flatten_parameters", _flatten_parameters)


def _flatten_parameters(layer: nn.RNNBase) -> None:
    """cuDNN wants all weights in one block: torch moves them there when the layer is moved to the GPU."""
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


# -- rules ---------------------------------------------------------------------------------------------------------------------

LAYERS = "ATen/native/RNN.cpp"
CUDNN = f"ATen/native/cudnn/RNN.cpp; sizes {MEASURED_CUDNN}, workspaces of 1,619 layers (benchmarks/truth/cudnn_recurrent.json.gz)"
CELLS = "ATen/native/cuda/RNN.cu"

RULES = (
    Rule(operators=("lstm.input",), runs=_lstm, source=LAYERS),
    Rule(operators=("lstm.data",), runs=_lstm_packed, source=LAYERS),
    Rule(operators=("gru.input",), runs=_one_state(GRU, aten.gru.input), source=LAYERS),
    Rule(operators=("gru.data",), runs=_one_state_packed(GRU, aten.gru.data), source=LAYERS),
    Rule(operators=("rnn_tanh.input",), runs=_one_state(RNN_TANH, aten.rnn_tanh.input), source=LAYERS),
    Rule(operators=("rnn_tanh.data",), runs=_one_state_packed(RNN_TANH, aten.rnn_tanh.data), source=LAYERS),
    Rule(operators=("rnn_relu.input",), runs=_one_state(RNN_RELU, aten.rnn_relu.input), source=LAYERS),
    Rule(operators=("rnn_relu.data",), runs=_one_state_packed(RNN_RELU, aten.rnn_relu.data), source=LAYERS),
    Rule(
        operators=("_cudnn_rnn",),
        returns=_forward,
        takes=_forward_blocks,
        keeps=_dropout_states,
        assumption="workspaces of recurrent layers follow rules that were read off an H200, within some per cent",
        source=CUDNN,
    ),
    Rule(operators=("_cudnn_rnn_backward",), returns=_backward, takes=_backward_blocks, source=CUDNN),
    Rule(operators=("_thnn_fused_lstm_cell",), takes=_lstm_cell_blocks, source=CELLS),
    Rule(operators=("_thnn_fused_gru_cell",), returns=_gru_cell, takes=_gru_cell_blocks, source=CELLS),
    Rule(operators=("_thnn_fused_lstm_cell_backward_impl",), takes=_lstm_cell_backward_blocks, source=CELLS),
    Rule(operators=("_thnn_fused_gru_cell_backward",), returns=_gru_cell_backward, takes=_gru_cell_backward_blocks, source=CELLS),
    Rule(operators=("_pack_padded_sequence",), returns=_pack_padded_sequence, source="ATen/native/PackedSequence.cpp"),
)
