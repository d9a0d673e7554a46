"""torchtitan as it is, predicted by ``memfit run`` and measured on a GPU.

    python benchmarks/blind/torchtitan_runs.py --predict             # without a GPU: results/torchtitan_runs.json
    python benchmarks/blind/torchtitan_runs.py --measure             # on a GPU: truth/torchtitan_runs.json
    python benchmarks/blind/torchtitan_runs.py --compare             # results/torchtitan_runs.md
    python benchmarks/blind/torchtitan_runs.py --predict 8b_tp2      # some of them

torchtitan 0.2.2, with torchao for float8, must be importable. It is predicted as its users start it: ``memfit run torchrun ... -m
torchtitan.train ...``. It is measured on one GPU, one rank at a time, in its own process: torchtitan takes a process group that
is there already, so this file makes torch's fake one first. Every buffer is then really allocated, and no peer is needed. What the
fake group cannot give, this file does (``stand_ins``): the shape that the stage before sends, and how many tokens the other ranks
send to the experts here.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import types
from dataclasses import dataclass, field

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
from benchmarks.blind.two_sides import Sides, begin_trace, main, write_trace

STEPS = 3
GPUS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration, and the ranks of it that are looked at."""

    flags: str
    world: int = 8
    ranks: tuple[int, ...] = (0,)
    model: str = "llama3"
    hidden: int = 4096
    """The width of what goes from stage to stage."""
    stated: dict[int, tuple[float, float]] = field(default_factory=dict)
    """GiB allocated and reserved that were measured before this file was written, by others and with flags that may differ."""
    steps: int = STEPS
    measurable: bool = True
    """Can one GPU and a fake group run it?"""

    @property
    def words(self) -> list[str]:
        fixed = f"--model.name {self.model} --training.steps {self.steps} --metrics.log_freq 1 --training.dataset c4_test"
        return [*fixed.split(), *self.flags.split()]

    def flag(self, name: str, default: int) -> int:
        words = self.words
        return int(words[words.index(name) + 1]) if name in words else default


MEASURED_BEFORE = "--training.seq_len 8192 --activation_checkpoint.mode selective --activation_checkpoint.selective_ac_option op"
"""As torchtitan's own file for this model has it; found by trying which flags give the stated 39.66 GiB."""
LLAMA_8B = f"--model.flavor 8B {MEASURED_BEFORE}"
TP, PP, CP = (f"--parallelism.{kind}_parallel_degree" for kind in ("tensor", "pipeline", "context"))
BATCH = "--training.local_batch_size"
SCHEDULE = "--parallelism.pipeline_parallel_schedule"
FLOAT8 = "--model.converters quantize.linear.float8"
ROWWISE = f"{FLOAT8} --quantize.linear.float8.recipe_name rowwise"
TENSORWISE = (
    f"{FLOAT8} --quantize.linear.float8.enable_fsdp_float8_all_gather "
    "--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"
)
EVEN = "--debug.moe_force_load_balance"
EXPERTS = f"{EVEN} --parallelism.expert_parallel_degree"

ROWS = {
    "debug_fsdp": Row(flags="--model.flavor debugmodel"),
    "debug_hsdp_tp2_cp2": Row(
        flags=f"--model.flavor debugmodel --parallelism.data_parallel_replicate_degree 2 {TP} 2 {CP} 2", world=16, ranks=(0, 15)
    ),
    "8b_fsdp": Row(flags=f"{LLAMA_8B} {BATCH} 1", stated={0: (39.66, 50.26)}),
    "8b_fsdp_compile": Row(flags=f"{LLAMA_8B} {BATCH} 1 --compile.enable", stated={0: (29.83, 38.99)}),
    "8b_hsdp_none": Row(
        flags=f"--model.flavor 8B --activation_checkpoint.mode none {BATCH} 2 --parallelism.data_parallel_replicate_degree 2"
    ),
    "8b_tp2": Row(flags=f"{LLAMA_8B} {BATCH} 1 {TP} 2", stated={0: (30.46, 36.33)}),
    "8b_tp2_compile": Row(flags=f"{LLAMA_8B} {BATCH} 1 {TP} 2 --compile.enable"),
    "8b_tp2_async": Row(flags=f"{LLAMA_8B} {BATCH} 1 {TP} 2 --compile.enable --parallelism.enable_async_tensor_parallel"),
    "8b_pp2": Row(flags=f"{LLAMA_8B} {BATCH} 4 {PP} 2", ranks=(0, 4), stated={0: (50.97, 58.42)}),
    "8b_pp2_interleaved_compile": Row(
        flags=f"{LLAMA_8B} {BATCH} 4 {PP} 2 {SCHEDULE} Interleaved1F1B --compile.enable", ranks=(0, 4)
    ),
    "8b_cp2": Row(flags=f"{LLAMA_8B} {BATCH} 1 {CP} 2"),
    "8b_float8_compile": Row(flags=f"{LLAMA_8B} {BATCH} 1 {TENSORWISE} --compile.enable"),
    "8b_float8_rowwise": Row(flags=f"{LLAMA_8B} {BATCH} 1 {ROWWISE}"),
    "8b_tp2_cp2_pp2": Row(flags=f"{LLAMA_8B} {BATCH} 2 {TP} 2 {CP} 2 {PP} 2", ranks=(0, 4)),
    "70b_fsdp_tp8": Row(flags=f"--model.flavor 70B --activation_checkpoint.mode full {BATCH} 4 {TP} 8", world=64, hidden=8192),
    "deepseek_debug_ep4": Row(flags=f"--model.flavor debugmodel {EXPERTS} 4", model="deepseek_v3", hidden=256),
    "deepseek_16b_ep8": Row(
        flags=f"--model.flavor 16B --activation_checkpoint.mode full {BATCH} 2 {EXPERTS} 8", model="deepseek_v3", hidden=2048
    ),
    "deepseek_16b_ep8_pp2": Row(
        flags=f"--model.flavor 16B --activation_checkpoint.mode full {BATCH} 4 {PP} 2 {EXPERTS} 8",
        world=16,
        model="deepseek_v3",
        hidden=2048,
        ranks=(0, 8),
    ),
}


def cases(names: list[str]) -> list[str]:
    """``8b_pp2@4``: a row and one of its ranks."""
    wanted = [name if "@" in name else f"{name}@{rank}" for name in names or ROWS for rank in ROWS[name.partition("@")[0]].ranks]
    return list(dict.fromkeys(wanted))


def of_case(case: str) -> tuple[Row, int]:
    name, _, rank = case.partition("@")
    return ROWS[name], int(rank)


# -- what torchtitan reads from the disk -----------------------------------------------------------------------------------------


def furnish(folder: pathlib.Path) -> list[str]:
    """A tokenizer and a few texts, where torchtitan looks for them; gives the flag that names the tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = [f"word{number}" for number in range(1000)]
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *words])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    assets, texts = folder / "tokenizer", folder / "tests" / "assets" / "c4_test"
    for made in (assets, texts):
        made.mkdir(parents=True)
    tokenizer.save(str(assets / "tokenizer.json"))
    (assets / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}))
    lines = (json.dumps({"text": " ".join(words[start:] + words[:start])}) for start in range(200))
    (texts / "data.json").write_text("\n".join(lines) + "\n")
    return ["--model.hf_assets_path", str(assets), "--job.dump_folder", str(folder / "out")]


# -- predicting ----------------------------------------------------------------------------------------------------------------


def predict(case: str) -> dict:
    return {"case": case} | predict_row(*of_case(case))


def predict_row(row: Row, rank: int, gpu: str = "H200") -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        nodes = max(1, row.world // GPUS_PER_NODE)
        launcher = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={row.world // nodes}", "-m", "torchtitan.train"]
        start = time.perf_counter()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "memfit", "run", "--json", "--gpu", gpu, "--torch-version", "2.11+cu130"),
                *("--rank", str(rank), "--steps", str(row.steps), *launcher, *row.words, *furnish(folder)),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            env=os.environ | {"HF_HOME": str(folder / "hf"), "HF_DATASETS_OFFLINE": "1"},
        )
    answers = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not answers:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return {"error": said[-1][:300], "details": "\n".join(said[-30:])}
    found = json.loads(answers[-1])
    return {
        "peak": found["peak_allocated"],
        "reserved": found["peak_reserved"],
        "seconds": round(time.perf_counter() - start, 1),
        "fits": found["fits"],
        "problem": found["problem"],
        "num_steps": found["num_steps"],
        "assumptions": found["assumptions"],
    }


# -- measuring -----------------------------------------------------------------------------------------------------------------


def stand_ins(row: Row) -> None:
    """What a fake process group and a machine without ``datasets`` cannot give."""
    import torch
    import torch.distributed as dist

    try:
        import datasets  # noqa: F401
    except ImportError:
        _stand_in_for_datasets()

    micro = row.flag("--parallelism.pipeline_parallel_microbatch_size", 1)
    length = row.flag("--training.seq_len", 2048) // row.flag(TP, 1) // row.flag(CP, 1)

    def receive(objects: list, *args, **kwargs) -> None:
        """What the stage before tells about what it will send: hidden states of one shape go through the model."""
        objects[0] = (torch.empty(micro, length, row.hidden, dtype=torch.bfloat16, device="meta"),)

    dist.recv_object_list = receive
    dist.send_object_list = lambda *args, **kwargs: None

    from torch.distributed import _functional_collectives as functional

    original = functional.all_to_all_single

    def all_to_all_single(tensor, output_splits, input_splits, group, *args, **kwargs):
        """Counts: the other ranks send as many tokens as this one does. Everything else goes through the fake group."""
        if output_splits is None and input_splits is None:
            return tensor.clone()
        return original(tensor, output_splits, input_splits, group, *args, **kwargs)

    functional.all_to_all_single = all_to_all_single


def _stand_in_for_datasets() -> None:
    """The two functions and the class that torchtitan takes from Hugging Face's datasets, for a JSON file of texts."""

    class Dataset(list):
        def skip(self, count: int) -> Dataset:
            return Dataset(self[count:])

    def load_dataset(path: str, **options) -> Dataset:
        return Dataset(json.loads(line) for line in (pathlib.Path(path) / "data.json").read_text().splitlines())

    datasets, distributed = types.ModuleType("datasets"), types.ModuleType("datasets.distributed")
    datasets.Dataset, datasets.load_dataset, datasets.distributed = Dataset, load_dataset, distributed
    distributed.split_dataset_by_node = lambda data, rank, world_size: Dataset(data[rank % len(data) :: world_size] or data)
    sys.modules |= {"datasets": datasets, "datasets.distributed": distributed}


def measure(case: str, trace: pathlib.Path | None) -> dict:
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    row, rank = of_case(case)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(row.world), LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    stand_ins(row)
    if trace is not None:
        begin_trace()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=row.world)
    peaks: list[tuple[int, int]] = []
    cuda = torch.cuda

    def look() -> None:
        peaks.append((cuda.max_memory_allocated(), cuda.max_memory_reserved()))

    reset = cuda.reset_peak_memory_stats

    def look_and_reset(*args) -> None:
        look()
        reset(*args)

    cuda.reset_peak_memory_stats = look_and_reset  # torchtitan forgets the peak after each step's log
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        sys.argv = ["torchtitan.train", *row.words, *furnish(folder)]
        os.chdir(folder)
        from torchtitan import train

        try:
            train.main(train.Trainer)
            problem = ""
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"[:500]
            if not peaks:
                raise
        look()
    if trace is not None:
        write_trace(trace / f"{case}.gz")
    return {
        "case": case,
        "torch": torch.__version__,
        "gpu": cuda.get_device_name(),
        "peak": max(peak for peak, _ in peaks),
        "reserved": max(reserved for _, reserved in peaks),
        "peaks": peaks,
        "problem": problem,
    }


# -- both sides ----------------------------------------------------------------------------------------------------------------


def place(case: str) -> tuple[str, str]:
    row, rank = of_case(case)
    return case.partition("@")[0], f"{rank} of {row.world}"


def stated(case: str) -> dict | None:
    row, rank = of_case(case)
    sizes = row.stated.get(rank)
    return dict(zip(("peak", "reserved"), (size * 2**30 for size in sizes), strict=True)) if sizes else None


SIDES = Sides(
    script=pathlib.Path(__file__),
    cases=tuple(cases([])),
    place=place,
    predict=predict,
    measure=measure,
    choose=cases,
    is_measurable=lambda case: of_case(case)[0].measurable,
    measured_before=stated,
    heading=(
        "torchtitan 0.2.2 as it is, three steps: predicted without a GPU by `memfit run`, and run on an H200 with torch's fake",
        "process group; `python benchmarks/blind/torchtitan_runs.py`. MiB.",
    ),
    footing=(
        "",
        "\\* Measured before, with the same flags as far as is known, and rounded to 0.01 GiB.",
        "",
        "The flags of each row, after `-m torchtitan.train`:",
        "",
        *(f"* `{name}`, {row.world} ranks: `--model.name {row.model} {row.flags}`" for name, row in ROWS.items()),
    ),
)


if __name__ == "__main__":
    main(SIDES, __doc__.splitlines()[0])
