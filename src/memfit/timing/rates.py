"""What a measured GPU reaches of its peaks, and what its host spends: the meaning of every key of ``data/rates/*.toml``.

Formulas take a call, a GPU and these rates, and name no GPU. Figures are those of the GPU that was measured; another reaches the
same shares of its own peaks. Where a field does not say otherwise: ``start_us`` are microseconds of a call that has nothing to do,
``bandwidth`` is gigabytes a second, ``rate`` billions of elements a second, a ``share`` a part of a peak. Pairs are forward and
backward where their field says nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from memfit.data import parse_table, read_toml
from memfit.errors import ConfigError
from memfit.timing.leaves import brought_up_to_date

MICRO: Final = 1e-6
PICO: Final = 1e-12

BESIDE_RATES: Final = ("gpu", "calibration")
"""Tables of a file that ``memfit calibrate`` made: the card, and how it was measured."""

Pair = tuple[float, float]
ByPass = Mapping[str, float]
"""By the computation of a convolution: forward, images, weights."""


class Moved(StrEnum):
    """Which bytes an operator moves."""

    ALL = "all"
    """Everything once."""
    WRITTEN = "written"
    WRITTEN_TWICE = "written twice"
    """What is looked up is as much as what comes out."""
    LISTS = "lists, and the first again"
    """Lists of tensors, of which the first is written back."""
    FIRST_TWICE = "the first list twice, and the second"
    """Optimizers multiply a gradient with itself, and it is read once."""
    FUSED = "all lists twice, but the gradients once"
    """Fused optimizers: parameters, gradients and states are read; all but the gradients are written back."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """An operator that memory bounds, or the rate of its elements."""

    start_us: float
    bandwidth: float
    rate: float = math.inf
    moved: Moved = Moved.ALL
    num_kernels: int = 1


@dataclass(frozen=True, kw_only=True)
class ProductKernels:
    """How a library multiplies matrices."""

    tiles: tuple[tuple[int, int, float], ...]
    """Rows, columns, and the share of a multiprocessor's peak that is reached along k."""
    start_us: float
    """Before the first tile and after the last."""
    per_tile_us: float
    """What a tile takes beside its arithmetic: the first bytes come, the result goes."""
    at_once: int
    """Tiles of the smallest size that a multiprocessor has at once: while one waits for its bytes, others are multiplied."""
    memory_share: float


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """A product that is cut along k, and its parts added up by a kernel of its own."""

    most_parts: int
    shortest: int
    """Parts of fewer steps along k are not cut again."""
    start_us: float
    bandwidth: float


@dataclass(frozen=True, kw_only=True)
class ProductRates:
    tensor_cores: ProductKernels
    """bfloat16, float16, float8 and tf32."""
    plain: ProductKernels
    """float32 and float64 without tensor cores."""
    power_share: float
    """What the GPU's power leaves of the tensor cores' peak to one large product."""
    sustained_share: float
    """The same when products follow one another, as in training."""
    misaligned: Mapping[str, float]
    """The share of the peak where rows of two-byte elements begin at multiples of 1, 2 or 4 of them."""
    misaligned_small: float
    """Of that, with small tiles."""
    splitting: Splitting


@dataclass(frozen=True, kw_only=True)
class AttentionKernel:
    """Shares of the GPU's peak for its type, by the size of a head: 64, 128 and 256."""

    forward: tuple[float, float, float]
    backward: tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class AttentionRates:
    kernels: Mapping[str, AttentionKernel]
    block: int
    block_f32: int
    """Queries, and keys, of a block; of float32."""
    causal_overhang: float
    """The diagonal costs a block more for each multiple of this in the size of a head."""
    start_us: Pair
    per_block_us: Pair
    memory_share: float
    masked: Pair
    """Slowdown with a mask in the memory-efficient kernels."""
    dropped: Pair
    """Slowdown with dropout."""


@dataclass(frozen=True, kw_only=True)
class ElementwiseRates:
    start_us: float
    computed_start_us: float
    """The same where a type is changed or a place computed."""
    memory_share: float
    casting: Pair
    """A type is changed on the way; of one input, and of several."""
    strided: Pair
    """Tensors lie differently; of one input, and of several."""
    broadcast: Pair
    """All that is not repeated lies alike; of four bytes an element, and of two."""
    repeated: Pair
    """One tensor is read, and parts of it again and again; of four bytes, and of two."""
    turned: float
    """Neighbours in the result are not neighbours in what is read."""
    slow: Mapping[str, float]
    """Functions whose arithmetic is the limit."""
    one_pass: tuple[str, ...]
    """All other operators that are known to go once over every element; ``add_`` and ``_foreach_add`` count as ``add``."""


@dataclass(frozen=True, kw_only=True)
class CompiledRates:
    """Kernels that Triton compiled."""

    start_us: float
    memory_share: float
    slow_loop: float
    """Elements of loops with exponentials and the like."""


@dataclass(frozen=True, kw_only=True)
class ReductionRates:
    to_one: Row
    inner: Row
    """Along the innermost dimension."""
    inner_result_ns: float
    inner_element_ns: float
    short_row: int
    """Of a result, and of each of its elements up to ``short_row``."""
    slow: Mapping[str, float]
    """Operators with a rate of their own."""
    of_bool: float
    outer: Row
    """Along other dimensions; its rate is of results."""
    walked_row_ns: Pair
    many_rows_us: float
    """Along the first dimensions, for each row; and beyond ``many_rows_us`` for few rows."""
    full_columns: int
    """With fewer results, several threads share a column."""


@dataclass(frozen=True, kw_only=True)
class SoftmaxRates:
    short_row: int
    short: tuple[Row, Row]
    """Rows of up to ``short_row`` elements."""
    long: tuple[Row, Row]


@dataclass(frozen=True, kw_only=True)
class WeightNormRates:
    row: Row
    columns_of_group: int
    seconds_per_row: Pair
    """Where the norms are of the last dimension."""


@dataclass(frozen=True, kw_only=True)
class LossRates:
    row: Row
    most_us: float
    """The start, at most."""
    rows_per_us: float


@dataclass(frozen=True, kw_only=True)
class ScanRates:
    row: Row
    """Its rate is of a single row."""
    elements: float
    """Billions a second, along the innermost dimension."""
    rows_at_once: int
    """On one multiprocessor; the same."""
    step: int
    step_ns: float
    """Of ``step`` elements of a row; the same."""
    threads: int
    outer_step_ns: float
    sharing_ns: float
    """Along other dimensions: a group has that many threads, each with a row; what an element takes them, and how much more with
    each further group on a multiprocessor."""
    slow: Mapping[str, float]
    """Slowdown of operators with more arithmetic."""


@dataclass(frozen=True, kw_only=True)
class PutBackRates:
    """Zeros everywhere, then a gradient in its place."""

    start_us: float
    filled_share: float
    copied_share: float
    elements: float
    """Billions of elements of the gradient a second."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingBackwardRates:
    start_us: float
    few: int
    few_start_us: float
    """The start for up to ``few`` indices, which are not sorted."""
    sorted_ns: float
    """Of an index."""
    rows_of_group: int
    """Equal indices that one group of threads adds up."""
    filled_share: float
    elements: float
    """Billions of elements of such groups, a second."""


@dataclass(frozen=True, kw_only=True)
class IndexingRates:
    """Rows and elements whose places are numbers in a tensor."""

    start_us: float
    memory_share: float
    lookup_row_ns: float
    """A group of threads for each row that is looked up."""
    lookup_rate: float
    """Where rows do not fill whole words: element by element."""
    mask_us: float
    mask_rate: float
    """More, where a mask says what is looked up: the places of its elements are found first."""
    written: Mapping[str, float]
    """Elements that are written or added, by operator."""
    of_half: float
    """What is left of that where two bytes are added."""
    scattered_rate: float
    """The same, at most, where neighbours go to different places."""
    passes: Mapping[str, int]
    """Operators that go over their elements more than once."""
    sorting_us: float
    sorted_ns: float
    """Sorting, for each index."""
    sorted_rate: float
    """Elements that are added after it."""
    repeated_us: float
    """For each time that an index repeats, on average."""


@dataclass(frozen=True, kw_only=True)
class LayerNormRates:
    forward: Row
    backward: Row
    per_row_ns: Pair
    """Of a group of threads for each row; of four bytes an element, and of two."""
    backward_per_row_ns: float
    adding_per_row_ns: float
    """The gradients of weights are added up along all rows."""
    split_rows: int
    split_columns: int
    split_us: float
    """The same in parts, for more rows than ``split_rows`` of fewer columns than ``split_columns``."""


@dataclass(frozen=True, kw_only=True)
class RecurrentRates:
    """By four bytes an element, and by two."""

    step_share: tuple[Pair, Pair]
    """Of the speed of a product with the same sizes, that of one step; then forward and backward."""
    whole_share: Pair
    """The same of products over all steps."""
    cell_us: float
    cell_rate: Pair
    """Billions of units a second."""
    small_state: int
    small_state_us: float
    """In float32 a state of that many units stays in a multiprocessor: microseconds of a step, either way."""
    bias_rate: Pair


@dataclass(frozen=True, kw_only=True)
class ConvolutionKernels:
    """How cuDNN multiplies elements of one kind. Shares are of the speed of a product with the same sizes."""

    shares: ByPass
    grouped_shares: ByPass
    """Of what groups are multiplied as."""
    pointwise_shares: ByPass
    """Kernels of one pixel, channels last."""
    image_shares: ByPass
    """Kernels of one pixel, channels first: a product for each image."""
    chunk: int
    """Channels that are loaded at once, for each pixel of the kernel."""
    group_chunk: int
    """The same in groups: as many groups as fit into it are multiplied as if they were one, with zeros between them."""
    aligned: int
    """Channels that fill 16 bytes; others are filled up with zeros."""
    long: ByPass
    """Seconds for each step along k of each group, of kernels longer than ``longest_side``."""


@dataclass(frozen=True, kw_only=True)
class ConvolutionRates:
    kernels: Mapping[str, ConvolutionKernels]
    """Of two bytes an element (``half``), of float32 on tensor cores (``tf32``), and without them (``plain``)."""
    strided_share: float
    """What is left of a share where the gradient by images leaves out pixels."""
    filled_share: ByPass
    """The same where channels are filled up: older kernels do it."""
    regrouping_us: float
    regrouping_rate: float
    """Where the channels of a group are filled up to a power of two, of what is not turned anyway."""
    few_channels: int
    direct_start_us: float
    direct_teraflops: ByPass
    """Kernels without tensor cores that turn nothing: cuDNN takes them for few channels if they are faster."""
    looped_channels: tuple[int, int]
    """Half types of more channels in a group than the first and no more than the second may go group by group: forward up to
    ``few_pixels``, back beyond ``many_pixels``."""
    few_pixels: int
    many_pixels: int
    slicing: float
    """Billions of elements a second that are cut out for a group, or put back, channels last."""
    turning_us: float
    turning: float
    """Billions of elements a second from channels first to channels last, or back."""
    turning_share: Mapping[str, float]
    """Of the memory's bandwidth, by the bytes of an element."""
    adding_us: float
    adding_share: float
    """The weights of each image are added up."""
    misaligned_images: Mapping[str, tuple[int, float]]
    """Half types whose images have a multiple of four pixels but not of eight: the alignment of the product, and its share."""
    longest_side: int
    """Longer kernels are not multiplied for several groups at once, and none is cut along k."""
    long_odd: float
    """Seconds as in ``long``, forward, where a group's channels do not fill a chunk of half types."""


@dataclass(frozen=True, kw_only=True)
class DepthwiseKernel:
    """What an element of the result costs."""

    start_us: float
    per_element_ps: float
    per_tap_ps: float
    """For each pixel of the kernel."""
    memory_share: float
    most_taps: float = math.inf
    """For kernels of up to that many pixels."""


@dataclass(frozen=True, kw_only=True)
class DepthwiseRates:
    """``first`` and ``last`` say where channels are."""

    first: Mapping[str, DepthwiseKernel]
    last: Mapping[str, DepthwiseKernel]
    last_half: Mapping[str, DepthwiseKernel]
    last_weights: tuple[DepthwiseKernel, ...]
    """Of float32, by ``most_taps``."""
    first_weights_start_us: float
    warps_of_group: int
    warp_steps: float
    """Billions of steps of a warp a second."""
    steps_of_image: float
    """What an image takes beside the steps for its pixels."""
    enough_warps: float
    """On a multiprocessor; with fewer it waits for memory."""


@dataclass(frozen=True, kw_only=True)
class ChannelGroups:
    """A kernel that goes through images with channels first: a group of threads for each channel."""

    rate: float
    """Of one group that has its multiprocessor to itself."""
    sharing: float
    """How much longer it takes, as a part of one, for each further group on the same multiprocessor."""
    start_us: float
    """For each wave of groups, four on a multiprocessor."""
    planes: float = math.inf
    """Billions of planes, channels of one image, a second at most: small ones leave threads without work."""
    threads: int = 1
    """Threads that go through a plane together, or the next power of two where it is smaller."""


@dataclass(frozen=True, kw_only=True)
class BatchNormRates:
    groups: Mapping[str, ChannelGroups]
    """Channels first: ``cudnn``, ``cudnn_backward``, ``torch``, of which it is the statistics alone, and ``torch_backward``."""
    start_us: float
    memory_share: float
    normalizing_us: float
    normalizing_rate: float
    normalizing_planes: float
    """Torch's forward after its statistics; planes in billions a second."""
    cudnn_last: Row
    torch_last: Row
    torch_last_backward: Row
    """Channels last."""


@dataclass(frozen=True, kw_only=True)
class GroupNormRates:
    start_us: float
    statistics: float
    """Billions of elements a second, of the threads that have one image's group of channels."""
    rate: float


@dataclass(frozen=True, kw_only=True)
class PlaceRates:
    """Pooling or resizing: a thread for each place of the larger of a gradient and a result. Pairs: channels first and last."""

    per_place_ps: Pair
    per_window_ps: float = 0.0
    """More for each pixel of a window; backward, for each window that a place is in."""
    of_half: Pair = (1.0, 1.0)
    """Slowdown in types of two bytes, whose sums are added up one at a time."""


@dataclass(frozen=True, kw_only=True)
class PlacesRates:
    operators: Mapping[str, PlaceRates]
    start_us: float
    memory_share: float
    plane_us: Mapping[str, float]
    """Of a plane, channels first, at least: threads go through all planes one after the other."""
    atomics: Mapping[str, int]
    """Backward, places that each place is added to."""
    atomic_rate: Pair
    repeated_atomic_rate: Pair
    """Of additions, of four bytes and of two; and divided by how many go to one place."""
    serial_us: float
    """Of each of the places that one thread adds up."""


@dataclass(frozen=True, kw_only=True)
class FactorRates:
    """Factors of matrices, and what is solved by them: a column after the other."""

    start_us: float
    column_us: Mapping[str, float]
    """By operator, whatever the batch."""


@dataclass(frozen=True, kw_only=True)
class TransferRates:
    start_us: float
    pinned_share: float
    """Of the line rate between host and GPU."""
    pageable_to: float
    pageable_from: float
    """Gigabytes a second to and from the GPU of memory that is not pinned: the host copies it first."""
    pageable_new: float
    """The same from the GPU into memory that the system gives anew."""
    pageable_bytes: int
    """Up to this size, memory that is not pinned is as fast as other."""
    host_bandwidth: float
    """Of operators on host tensors."""
    new_memory_bandwidth: float
    new_memory_bytes: int
    """Results larger than this are in memory that the system gives anew, at that bandwidth."""


@dataclass(frozen=True, kw_only=True)
class ConvolutionHost:
    """Microseconds of the host."""

    usual: float
    by_channel: float
    """Each channel by itself, which is torch's own kernel."""
    bias: float
    """More with a bias, which is added by an operator of its own."""
    half: float
    """More in half types, whose images cuDNN turns around first and again after."""


@dataclass(frozen=True, kw_only=True)
class DistributedHost:
    """Microseconds that distributed tensors cost more."""

    list_base: float
    list_item: float
    norm_item: float
    fused_item: float
    operator: float
    operator_backward: float
    redistributed: float
    redistributed_backward: float
    """Where one is laid out anew."""
    local: float
    local_backward: float
    """From one to this rank's part of it, or back."""


@dataclass(frozen=True, kw_only=True)
class HostRates:
    """What the host spends, in microseconds."""

    launch: float
    """From the host's call until the kernel begins, where the GPU has nothing else to do."""
    gap: float
    """Between the end of a kernel and the beginning of the next on its stream."""
    days: Pair
    """How many times as long as these figures the same machine needed on its fastest day and on its slowest."""
    in_forward: float
    """How many times as long as in a loop over one operator: Python runs between a step's operators, and caches hold less."""
    in_inference: float
    """The same where autograd notes nothing down: generation, evaluation, an optimizer's own operators."""
    in_backward: float
    """The same of backward, where no Python runs."""
    operators: Mapping[str, float]
    """A call, without autograd's part."""
    usual: float
    """A call of any other operator."""
    recorded: float
    """More where autograd notes down how to go back."""
    view: float
    """Looking at a tensor in another way."""
    node: float
    """A node of backward."""
    list_base: float
    list_item: float
    norm_item: float
    """An operator on lists of tensors, for each tensor, and for each whose norm is taken."""
    fused_base: float
    fused_item: float
    """The same of fused optimizers."""
    host_usual: float
    host_list_item: float
    """An operator on tensors of the host, and for each tensor of a list of them."""
    host_item: float
    """Reading a number of the host's own."""
    kernel: float
    """Launching a kernel of compiled code."""
    graph: float
    """Launching a CUDA graph."""
    collective: float
    """Issuing a collective."""
    checkpoint: float
    """Around a module that is computed again."""
    module: float
    """Calling a module of ``torch.nn``."""
    own_module: float
    """Calling any other, whose forward is Python."""
    policy_operator: float
    """More for each operator that the modes of selective checkpointing see."""
    recompute: float
    """Beginning a module that is computed again: Python is called for each tensor that is saved and for each that is used."""
    distributed: DistributedHost
    convolution: tuple[ConvolutionHost, ConvolutionHost]


@dataclass(frozen=True, kw_only=True)
class Rates:
    """A file of ``data/rates``."""

    measured_on: str
    """The GPU's name."""
    memory_bandwidth: float
    """Its peak in gigabytes a second: bandwidths are in proportion to it."""
    f32_flops: float
    """Its peak in operations a second: rates of elements are in proportion to it."""
    products: ProductRates
    attention: AttentionRates
    elementwise: ElementwiseRates
    compiled: CompiledRates
    rows: Mapping[str, Row]
    """Operators that memory bounds and that no formula is for."""
    fill: Row
    reduction: ReductionRates
    softmax: SoftmaxRates
    weight_norm: WeightNormRates
    layer_norm: LayerNormRates
    loss: LossRates
    scan: ScanRates
    put_back: PutBackRates
    embedding_backward: EmbeddingBackwardRates
    indexing: IndexingRates
    cat: Row
    """Its rate is for parts that are not contiguous."""
    recurrent: RecurrentRates
    convolution: ConvolutionRates
    depthwise: DepthwiseRates
    batch_norm: BatchNormRates
    group_norm: GroupNormRates
    places: PlacesRates
    factors: FactorRates
    transfers: TransferRates
    host: HostRates

    @classmethod
    def load(cls, path: Path) -> Rates:
        """Reads a file like ``data/rates/h200.toml``. Raises ``ConfigError`` where a key is missing or unknown."""
        return parse_table(cls, read_toml(path), path.name)

    @classmethod
    def of_card(cls, path: Path, template: Path) -> Rates:
        """Reads a file that ``memfit calibrate`` made, which has the GPU and how it was measured beside the rates. Where an older
        memfit made it, what it lacks is the template's, in proportion to its peaks."""
        tables = {key: table for key, table in read_toml(path).items() if key not in BESIDE_RATES}
        missing = [key for key in ("memory_bandwidth", "f32_flops") if key not in tables]
        if missing:
            raise ConfigError(f"{path.name}: {', '.join(missing)} is missing")
        return parse_table(cls, brought_up_to_date(tables, read_toml(template)), path.name)
