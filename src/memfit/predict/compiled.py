"""Buffers of compiled graphs in the ledger: by the kernel that writes them, in the module that the kernel was made from."""

from __future__ import annotations

from typing import Any

import torch

from memfit.ledger import Phase
from memfit.phantom.compile.allocation import Origin, current_origin, is_replayed
from memfit.record.sources.operators.blocks import BlockWriter
from memfit.record.sources.operators.handlers import OutputHandler
from memfit.record.sources.operators.recorder import Recorder

aten = torch.ops.aten


class CompiledBuffers:
    """Writes down what compiled graphs allocate; everything else is left as it is."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    def follow(self, recorder: Recorder) -> None:
        """The recorder knows which module has which number."""
        self._recorder = recorder

    def handler(self, func: Any, write_outputs: OutputHandler | None, blocks: BlockWriter) -> OutputHandler | None:
        if func is not aten.empty_strided.default or write_outputs is None:
            return write_outputs

        def plan_for_graphs(func: Any, args: Any, result: Any) -> None:
            if is_replayed():
                blocks.new(result, result.untyped_storage(), blocks.op("CUDA graph"), size=0)
                return
            origin = current_origin()
            if origin is None:
                write_outputs(func, args, result)
            else:
                self._write(origin, blocks, result)

        return plan_for_graphs

    def _write(self, origin: Origin, blocks: BlockWriter, result: torch.Tensor) -> None:
        assert self._recorder is not None
        scopes, depth = blocks.scopes, blocks.scopes.depth
        module = self._recorder.module_inside(origin.module)
        if module != -1:
            scopes.push(Phase.BACKWARD if origin.is_backward else Phase.FORWARD, module)
        blocks.new(result, result.untyped_storage(), blocks.op(origin.kernel))
        scopes.pop_to(depth)
