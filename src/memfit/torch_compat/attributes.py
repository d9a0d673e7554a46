"""Private names of torch that memfit reads or replaces where it meets them.

A function around each would cost a call for every operator, so they are used in place; this list is their one home. What is not on
it may not be used outside ``torch_compat`` (``tests/torch_compat/test_private_parts.py`` looks), and each is exercised by a test.
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import dataloader

from memfit.torch_compat.versions import need

READ = {
    "_schema": "an operator's arguments and results, and which of them share memory",
    "_opname": "an operator's name without its namespace",
    "_cdata": "a storage's or tensor's identity in C++",
    "_base": "the tensor that a view looks into",
    "_is_view": "whether a tensor looks into another",
    "_indices": "where the values of a sparse tensor are",
    "_values": "the values of a sparse tensor",
    "_parameters": "a module's own parameters by name",
    "_buffers": "a module's own buffers by name",
    "_flat_weights": "the weights of a recurrent layer in cuDNN's order",
    "_flat_weights_names": "their names",
    "_destroy": "ends what a torch.library.Library has registered",
    "_sequence_nr": "the number of an autograd node, in the order of forward",
    "_fully_sharded_module": "the module of an FSDP1 handle",
    "_module_classes_to_ignore": "which modules FSDP's mixed precision leaves alone",
    "_BatchNorm": "what every batch norm is",
    "_StridedShard": "a placement of DTensor whose shards are not next to each other",
    "_OptimStateKey": "how FSDP1 names the state of a parameter",
}
"""By name: what it tells."""

ADDED = {
    "_cuda_getCurrentRawStream": "the number of the current stream, which builds without CUDA cannot tell",
    "_broadcast_coalesced": "what DataParallel copies to other GPUs, which builds without CUDA do not have",
    "_scatter": "the parts of a batch for DataParallel's GPUs, likewise",
    "_gather": "their results, likewise",
}
"""Names that torch's objects do not have until memfit gives them one."""


LoaderIterator: Any = need(dataloader, "_BaseDataLoaderIter")
"""Gives the batches of one epoch, with and without workers."""
need(LoaderIterator, "__next__")


def batches_given(iterator: Any) -> int:
    """How many batches of this epoch it has given; 0 where this torch does not count them."""
    return int(getattr(iterator, "_num_yielded", 0))
