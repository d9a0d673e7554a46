"""What cuDNN takes for recurrent layers over packed sequences.

    python benchmarks/kernels/packed_recurrent_on_gpu.py      # on a CUDA GPU: truth/packed_recurrent.json

Each row: the layer, hidden size, input size, layers, in both directions, with dropout, sequences, the longest, steps in all, and
what the allocator did in order, forward and backward (what was given back is negative).
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.kernels.recorded_calls import recorded

TRUTH = Path(__file__).parents[1] / "truth" / "packed_recurrent.json"
NUM_CASES = 150


def main() -> None:
    draw = random.Random(5)
    found = itertools.product(("LSTM", "GRU"), (128, 320, 512, 1024), (64, 512, 1500), (1, 2, 3), (False, True), (False, True))
    cases = [case for case in found if not (case[3] == 1 and case[5])]
    draw.shuffle(cases)
    rows = []
    for kind, hidden, inputs, layers, both_ways, drops in cases[:NUM_CASES]:
        batch, longest = draw.choice((4, 16, 32, 64)), draw.choice((12, 40, 100, 600))
        lengths = torch.tensor([draw.randint(max(1, longest // 6), longest) for _ in range(batch)])
        dropout = 0.3 if drops else 0.0
        layer = getattr(nn, kind)(inputs, hidden, layers, batch_first=True, dropout=dropout, bidirectional=both_ways).cuda()
        x = torch.randn(batch, int(lengths.max()), inputs, device="cuda", requires_grad=True)
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        layer(packed)
        (output, _), forward = recorded(lambda layer=layer, packed=packed: layer(packed))
        _, backward = recorded(output.data.sum().backward)
        about = [kind, hidden, inputs, layers, both_ways, drops, batch, int(lengths.max()), int(lengths.sum())]
        rows.append([*about, forward, backward])
    TRUTH.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
