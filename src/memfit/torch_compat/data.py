"""Data loaders: what iterates over them."""

from __future__ import annotations

from typing import Any

from torch.utils.data import dataloader

from memfit.torch_compat.versions import need

LoaderIterator: Any = need(dataloader, "_BaseDataLoaderIter")
"""Gives the batches of one epoch, with and without workers."""
need(LoaderIterator, "__next__")
