"""The options of a training recipe: one row per choice.

::

    STRATEGIES, ENGINES, SCHEDULES, OPTIMIZERS, ...    the rows
    AXES                                               what is chosen of them, by the name of a recipe's field

Everything else follows from the rows: the words of the flags and their help, what a recipe accepts and fills in, what torch is
asked for, what a comparison varies by default, what it leaves out as hopeless, and which of two configurations is cheaper to
run. A new optimizer or strategy is one more row here. (A strategy also needs a member in ``memfit.fsdp``, whose words are torch's;
engines are those of ``memfit.engines``.)

Tables are dictionaries in the order of help texts. Imports no torch: torch's types and classes are given by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from memfit import engines
from memfit.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of a recipe's field."""

    name: str
    cost: int = 0
    """Rank among the choices of its kind: of two that fit, the lower one is cheaper to run."""
    compared: bool = False
    """True if it is compared by default."""


class Split(Enum):
    """Over which GPUs a strategy splits parameters, gradients and optimizer state."""

    NOTHING = "nothing is split"
    NODE = "over the GPUs of a node"
    WORLD = "over all GPUs"


@dataclass(frozen=True, kw_only=True)
class Strategy(Choice):
    split: Split
    reshards: bool = True
    """True if parameters are freed between forward and backward; otherwise all of them are whole at once."""
    engine: str = "fsdp2"
    """The default engine."""


@dataclass(frozen=True, kw_only=True)
class EngineChoice(Choice):
    shards: bool = True
    """True if it can shard."""


@dataclass(frozen=True, kw_only=True)
class Optimizer(Choice):
    torch_name: str
    """The class in ``torch.optim``, or in ``module``."""
    module: str = "torch.optim"
    """Where a prediction takes the class from."""
    written: str = ""
    """How a script writes the class, if it is not one of ``torch.optim``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of that class besides parameters and learning rate."""
    state_copies: int = 0
    """Number of state tensors as large as the weights."""
    state_bytes: int = 0
    """Bytes of a number in them; 0 if they have the type of the weights."""
    lighter: str = ""
    """An equivalent optimizer that needs less memory in its step."""


@dataclass(frozen=True, kw_only=True)
class Precision(Choice):
    weights: str
    """The type of parameters, gradients and optimizer state, as torch calls it."""
    weight_bytes: int
    """The size of one of them."""
    computes: str = ""
    """The type of the computation; empty if it is that of the weights."""
    scales_loss: bool = False
    """True if the loss is scaled, because gradients of this type would underflow."""


@dataclass(frozen=True, kw_only=True)
class Schedule(Choice):
    """The order in which a pipeline runs its microbatches."""

    torch_name: str
    """As ``torch.distributed.pipelining`` calls it."""
    stages_a_rank: int = 1
    is_v: bool = False
    """True if a rank's second stage is counted from the end, so that the first rank also holds the last stage."""
    shards: bool = True
    """True if it trains with sharded stages. FSDP2 loses gradients of weights that are computed apart from the others in torch
    2.13: ``tests/parallel`` compares them."""

    def stages_of(self, rank: int, pp: int) -> list[int]:
        """The numbers of the stages that a rank of the pipeline has."""
        if self.is_v:
            return [rank, self.stages_a_rank * pp - 1 - rank]
        return [rank + pp * turn for turn in range(self.stages_a_rank)]


@dataclass(frozen=True, kw_only=True)
class Float8(Choice):
    """How the matrix products of a model's linear layers are computed in 8 bits."""

    recipe: str = ""
    """What torchao calls it; empty for none."""
    gathers: bool = False
    """True if sharded weights are gathered in 8 bits."""


def layers_of_stages(num_layers: int, num_stages: int) -> list[int]:
    """Number of layers per pipeline stage, as equal as possible; embedding and head count as one layer each."""
    sizes = [(num_layers + 2) // num_stages + (stage < (num_layers + 2) % num_stages) for stage in range(num_stages)]
    sizes[0] -= 1
    sizes[-1] -= 1
    return sizes


Row = TypeVar("Row", bound=Choice)


def _table(*rows: Row) -> dict[str, Row]:
    return {row.name: row for row in rows}


STRATEGIES: Final = _table(
    Strategy(name="full_shard", cost=5, compared=True, split=Split.WORLD),
    Strategy(name="shard_grad_op", cost=4, compared=True, split=Split.WORLD, reshards=False),
    Strategy(name="hybrid_shard", cost=3, compared=True, split=Split.NODE),
    Strategy(name="hybrid_shard_zero2", cost=2, split=Split.NODE, reshards=False),
    Strategy(name="no_shard", cost=1, compared=True, split=Split.NOTHING, reshards=False, engine="ddp"),
)
"""What costs least has least traffic between GPUs, and between nodes; no strategy at all costs nothing."""

ENGINES: Final = _table(
    *(EngineChoice(name=engine.name, shards=engine.shards) for engine in engines.ENGINES.values() if engine.is_applied)
)

SCHEDULES: Final = _table(
    Schedule(name="1f1b", cost=3, torch_name="1F1B"),
    Schedule(name="gpipe", cost=4, torch_name="GPipe"),
    Schedule(name="interleaved-1f1b", cost=2, torch_name="Interleaved1F1B", stages_a_rank=2),
    Schedule(name="looped-bfs", cost=4, torch_name="LoopedBFS", stages_a_rank=2),
    Schedule(name="interleaved-zero-bubble", cost=1, torch_name="InterleavedZeroBubble", stages_a_rank=2, shards=False),
    Schedule(name="zbv-zero-bubble", cost=0, torch_name="ZBVZeroBubble", stages_a_rank=2, is_v=True, shards=False),
    Schedule(name="dualpipe-v", cost=0, torch_name="DualPipeV", stages_a_rank=2, is_v=True),
)
"""What costs least leaves GPUs waiting least."""

FLOAT8S: Final = _table(
    Float8(name="none", cost=1),
    Float8(name="tensorwise", recipe="tensorwise", gathers=True),
    Float8(name="rowwise", recipe="rowwise"),
    Float8(name="rowwise-gw-hp", recipe="rowwise_with_gw_hp"),
)
"""Torchao's recipes: one scale a tensor, and weights gathered in 8 bits; one a row; one a row, gradients of weights in 16."""

PREFETCHES: Final = _table(Choice(name="backward_pre"), Choice(name="backward_post"), Choice(name="none"))

CHECKPOINTINGS: Final = _table(
    Choice(name="none", compared=True),
    Choice(name="selective", cost=1, compared=True),
    Choice(name="full", cost=2, compared=True),
)

KEPT_OPERATORS: Final = (
    "aten.mm.default",
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.baddbmm.default",
    "aten.convolution.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_attention_math.default",
)
"""What ``selective`` keeps: the outputs that take long to compute again. Everything else is cheap, and recomputed."""

COMPILES: Final = _table(Choice(name="none"), Choice(name="blocks"), Choice(name="model"))

OFFLOADS: Final = _table(Choice(name="none"), Choice(name="params", cost=1))

PRECISIONS: Final = _table(
    Precision(name="bf16-mixed", cost=0, compared=True, weights="float32", weight_bytes=4, computes="bfloat16"),
    Precision(name="fp16-mixed", cost=1, weights="float32", weight_bytes=4, computes="float16", scales_loss=True),
    Precision(name="bf16", cost=3, compared=True, weights="bfloat16", weight_bytes=2),
    Precision(name="fp32", cost=2, weights="float32", weight_bytes=4),
)
"""What costs least computes fast with weights in float32; training in bfloat16 alone costs accuracy, and comes last."""

LORA_MODULES: Final = _table(Choice(name="query-value"), Choice(name="all-linear"))
"""Which layers have adapters: those that make queries and values, as PEFT chooses by default, or all but the output."""

QUANTIZATIONS: Final = _table(Choice(name="none"), Choice(name="nf4"))
"""How frozen weights are kept: ``nf4`` is bitsandbytes' four bits with double quantization."""

OPTIMIZERS: Final = _table(
    Optimizer(name="adamw", torch_name="AdamW", state_copies=2, lighter="adamw-fused"),
    Optimizer(name="adamw-fused", torch_name="AdamW", options={"fused": True}, state_copies=2),
    Optimizer(
        name="adamw8bit",
        torch_name="AdamW8bit",
        module="memfit.models.adamw8bit",
        written="bitsandbytes.optim.AdamW8bit",
        state_copies=2,
        state_bytes=1,
    ),
    Optimizer(name="sgd", torch_name="SGD"),
    Optimizer(name="sgd-momentum", torch_name="SGD", options={"momentum": 0.9}, state_copies=1),
    Optimizer(name="adafactor", torch_name="Adafactor"),
)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One option: a field of a recipe, a flag, and a column of a comparison."""

    flags: tuple[str, ...]
    default: str
    """The default, in the words of the help."""
    summary: str = ""
    """Placeholder of the flag's value, if it is not the name of a row."""
    choices: Mapping[str, Choice] | None = None
    """The rows; ``None`` if it takes any number or mesh."""
    bare: str = ""
    """The value of the flag if none is given; empty if it requires one."""
    open: bool = False
    """True if it may be left to the GPUs; it is empty until the recipe is settled."""
    is_number: bool = False
    more_costs_more: bool = False
    """True if the lower of two fitting numbers is cheaper to run."""
    usual: Any = None
    """The value that a comparison does not mention; ``None`` to mention every value."""
    saves: str = ""
    """What the cheaper choice minimises, for a recommendation."""

    @property
    def help(self) -> str:
        """The help of the flag: its values and its default."""
        words = ", ".join(filter(None, (self.summary, ", ".join(self.choices or ()))))
        return f"{words}; {self.default}"


AXES: Final[dict[str, Axis]] = {
    "strategy": Axis(
        flags=("--strategy",),
        choices=STRATEGIES,
        default="full_shard by default, nothing on one GPU",
        open=True,
        usual="",
        saves="least communication",
    ),
    "engine": Axis(flags=("--engine",), choices=ENGINES, default="fsdp2 by default, ddp for no_shard", open=True, usual=""),
    "mesh": Axis(
        flags=("--mesh",),
        summary="how the GPUs are arranged: dp=8,tp=8,pp=8, or replicas x GPUs that shard for hybrid strategies: 8x8",
        default="the GPUs of a node shard by default; a name that comes again begins the next mesh",
        usual=(),
    ),
    "tp": Axis(
        flags=("--tp",),
        summary="GPUs that share every layer (tensor parallelism)",
        default="1 by default",
        is_number=True,
        more_costs_more=True,
        usual=1,
        saves="least tensor parallelism",
    ),
    "pp": Axis(
        flags=("--pp",),
        summary="GPUs in a row that share the layers out (pipeline parallelism)",
        default="1 by default",
        is_number=True,
        more_costs_more=True,
        usual=1,
        saves="the shortest pipeline",
    ),
    "cp": Axis(
        flags=("--cp",),
        summary="GPUs that share every sequence (context parallelism)",
        default="1 by default",
        is_number=True,
        more_costs_more=True,
        usual=1,
        saves="least context parallelism",
    ),
    "ep": Axis(
        flags=("--ep",),
        summary="GPUs that share the experts (expert parallelism)",
        default="1 by default",
        is_number=True,
        more_costs_more=True,
        usual=1,
        saves="least expert parallelism",
    ),
    "schedule": Axis(
        flags=("--schedule",),
        choices=SCHEDULES,
        default="for pipelines; 1f1b by default",
        open=True,
        usual="",
        saves="least waiting in the pipeline",
    ),
    "microbatches": Axis(
        flags=("--microbatches",),
        summary="parts of a batch that are computed one after another, before the optimizer's step",
        default="the batch is not cut by default, in pipelines one for each sequence",
        is_number=True,
        usual=0,
    ),
    "batch": Axis(
        flags=("--batch",),
        summary="sequences per GPU and step",
        default="1 by default, in pipelines one for each microbatch",
        is_number=True,
    ),
    "seq": Axis(
        flags=("--seq",),
        summary="tokens per sequence",
        default="the model's context by default, but no more than 8192",
        is_number=True,
    ),
    "precision": Axis(
        flags=("--precision", "--dtype"),
        choices=PRECISIONS,
        default="bf16-mixed by default",
        open=True,
        saves="weights in float32",
    ),
    "checkpointing": Axis(
        flags=("--checkpointing",), choices=CHECKPOINTINGS, default="none by default", saves="least recomputation"
    ),
    "compile": Axis(
        flags=("--compile",),
        choices=COMPILES,
        bare="blocks",
        default="none by default; blocks compiles each block by itself, model all of it, with torch.compile",
        usual="none",
    ),
    "float8": Axis(
        flags=("--float8",),
        choices=FLOAT8S,
        bare="tensorwise",
        default="none by default; matrix products in 8 bits, by torchao",
        usual="none",
    ),
    "offload": Axis(
        flags=("--offload",),
        choices=OFFLOADS,
        default="none by default; params moves parameters, gradients and optimizer state to host memory",
        usual="none",
        saves="least traffic to host memory",
    ),
    "prefetch": Axis(flags=("--prefetch",), choices=PREFETCHES, default="backward_pre by default", usual="backward_pre"),
    "optimizer": Axis(flags=("--optimizer",), choices=OPTIMIZERS, default="adamw by default"),
    "lora": Axis(
        flags=("--lora",),
        summary="rank of LoRA adapters beside frozen weights, as PEFT makes them",
        default="none by default: all weights are trained",
        is_number=True,
        usual=0,
    ),
    "lora_modules": Axis(
        flags=("--lora-modules",),
        choices=LORA_MODULES,
        default="which layers have them; query-value by default",
        usual="query-value",
    ),
    "quantize": Axis(
        flags=("--quantize",),
        choices=QUANTIZATIONS,
        bare="nf4",
        default="none by default; frozen weights in four bits, as bitsandbytes keeps them (QLoRA)",
        usual="none",
    ),
}
"""In the order of the flags."""

CHEAPER_FIRST: Final = ("offload", "precision", "checkpointing", "pp", "cp", "tp", "ep", "schedule", "strategy")
"""The axes by which the cheaper of two configurations is found, the one that costs most first."""


def check_choice(axis: str, word: str) -> None:
    """Raises ``ConfigError`` for a word that is not in the table of an axis."""
    known = AXES[axis].choices
    if known is None or word in known or (AXES[axis].open and not word):
        return
    raise ConfigError(f"{axis} {word!r} is not known: use one of {', '.join(known)}")


def cost_of(axis: str, word: Any) -> int:
    """The rank of a choice's cost among its kind; 0 if it is not in the table, or was not chosen."""
    if AXES[axis].more_costs_more:
        return word if isinstance(word, int) else 0
    row = (AXES[axis].choices or {}).get(word)
    return row.cost if row is not None else 0


def compared(rows: Iterable[Choice]) -> tuple[str, ...]:
    """The names of the choices that are compared by default."""
    return tuple(row.name for row in rows if row.compared)
