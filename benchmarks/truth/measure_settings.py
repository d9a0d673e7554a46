"""What a real GPU's allocator does under each of its settings.

    python measure_settings.py FOLDER       on a machine with a GPU and torch; one fresh process a case

Each case allocates and frees at random, the same way each time, and writes what the allocator logged: FOLDER/NAME.npz, or a
snapshot FOLDER/NAME.pickle where the log alone would not do. FOLDER/settings.json has torch.cuda.memory_stats() after each.
"""

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MIB = 2**20
NUM_REQUESTS = 1500
LIVE_BYTES = 3000 * MIB

CASES = {
    "default": {},
    "empty_cache": {"empty_cache": True},
    "record_stream": {"record_stream": True},
    "limit": {"limit_mib": 3300},
    "fraction": {"conf": "per_process_memory_fraction:0.023"},
    "expandable": {"conf": "expandable_segments:True"},
    "expandable_empty_cache": {"conf": "expandable_segments:True", "empty_cache": True},
    "expandable_limit": {"conf": "expandable_segments:True", "limit_mib": 3100},
    "max_split": {"conf": "max_split_size_mb:64"},
    "max_split_limit": {"conf": "max_split_size_mb:64", "limit_mib": 3500},
    "max_split_rounding_limit": {"conf": "max_split_size_mb:20,max_non_split_rounding_mb:40", "limit_mib": 4000},
    "garbage_collection": {"conf": "garbage_collection_threshold:0.6", "limit_mib": 4500},
    "garbage_collection_max_split": {"conf": "garbage_collection_threshold:0.5,max_split_size_mb:128", "limit_mib": 4500},
    "roundup": {"conf": "roundup_power2_divisions:4"},
    "roundup_list": {"conf": "roundup_power2_divisions:[1:2,8:4,64:8,>:1]"},
    "large_segments": {"conf": "large_segment_size_mb:64"},
    "pools": {"pools": 2, "snapshot": True},
    "expandable_pools": {"conf": "expandable_segments:True", "pools": 2, "snapshot": True},
    "late": {"recorded_from": 700, "snapshot": True},
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as several:
        measured = list(several.map(lambda name: measure_in_a_process(name, folder), CASES))
    (folder / "settings.json").write_text(json.dumps(dict(zip(CASES, measured, strict=True)), indent=1, sort_keys=True))


def measure_in_a_process(name: str, folder: Path) -> dict:
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": CASES[name].get("conf", "")}
    command = [sys.executable, __file__, str(folder), name]
    return json.loads(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def measure(name: str, folder: Path) -> dict:
    import torch

    case, cuda = CASES[name], torch.cuda
    cuda.init()
    total = cuda.get_device_properties(0).total_memory
    if "limit_mib" in case:
        cuda.set_per_process_memory_fraction(case["limit_mib"] * MIB / total)
    torch.empty(1, device="cuda")
    cuda.empty_cache()
    cuda.reset_peak_memory_stats()
    cuda.reset_accumulated_memory_stats()
    held = allocate_at_random(case, random.Random(list(CASES).index(name)))
    stats = dict(cuda.memory_stats())
    if case.get("snapshot"):
        cuda.memory._dump_snapshot(str(folder / f"{name}.pickle"))
    else:
        write_trace(folder / f"{name}.npz")
    del held
    return {"conf": case.get("conf", ""), "limit": case.get("limit_mib", 0) * MIB, "total_memory": total, "stats": stats}


def allocate_at_random(case: dict, rng: random.Random) -> list:
    """Gives what must stay alive until the allocator has been looked at."""
    import torch

    cuda = torch.cuda
    streams = [cuda.default_stream(), cuda.Stream(), cuda.Stream()]
    pools = [cuda.MemPool() for _ in range(case.get("pools", 0))]
    ranges = [(1, MIB)] * 3 + [(MIB, 10 * MIB)] * 3 + [(10 * MIB, 200 * MIB)] * 2
    common = [rng.randrange(*rng.choice(ranges)) for _ in range(30)]
    live = []
    for i in range(NUM_REQUESTS):
        if i == case.get("recorded_from", 0):
            cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
        if case.get("empty_cache") and i % 300 == 299:
            cuda.empty_cache()
        if live and (sum(map(len, live)) > LIVE_BYTES * rng.random() or rng.random() < 0.3):
            del live[rng.randrange(len(live))]
            continue
        size = rng.choice(common) if rng.random() < 0.7 else rng.randrange(*rng.choice(ranges))
        stream = rng.randrange(3) if rng.random() < 0.3 else 0
        with cuda.stream(streams[stream]):
            if pools and rng.random() < 0.4:
                with cuda.use_mem_pool(rng.choice(pools)):
                    live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            else:
                live.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        if case.get("record_stream") and rng.random() < 0.2:
            other = streams[(stream + 1) % 3]
            with cuda.stream(other):
                cuda._sleep(rng.randrange(1000, 3_000_000))
            live[-1].record_stream(other)
    cuda.synchronize()
    return [live, pools]


def write_trace(path: Path) -> None:
    import numpy as np
    import torch

    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    actions = sorted({entry["action"] for entry in entries})
    np.savez_compressed(
        path,
        actions=np.array(actions),
        action=np.array([actions.index(entry["action"]) for entry in entries], dtype=np.uint8),
        addr=np.array([entry.get("addr", 0) for entry in entries], dtype=np.uint64),
        size=np.array([entry["size"] for entry in entries], dtype=np.int64),
        stream=np.array([entry["stream"] for entry in entries], dtype=np.uint64),
        peak_allocated=torch.cuda.max_memory_allocated(),
        peak_reserved=torch.cuda.max_memory_reserved(),
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[2], Path(sys.argv[1]))))
    else:
        main(Path(sys.argv[1]))
