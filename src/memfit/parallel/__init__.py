"""One model on many GPUs: tensor, pipeline, context and expert parallelism around FSDP's words.

::

    parallelize(model, Parallelism(tp=8, pp=8, schedule="interleaved-1f1b", ...), layout=ModelLayout(...), loss=loss)
        │  parallelize.py
        ├─ config.py      how many GPUs share what, and how; refused where it cannot be
        ├─ layout.py      what a model says about itself: its blocks, its first and its last modules, how each is split
        ├─ meshes.py      the ranks, arranged
        ├─ stages.py      the part of the model that a stage of a pipeline has
        ├─ splitting.py   float8, tensor parallelism, experts, then memfit.fsdp: checkpointing, compiling, sharding
        └─ model.py       ParallelModel ── forward_backward(tokens, labels), parameters, clip_grad_norm_

What comes back trains for real, under ``torchrun`` as in ``memfit.predict``. Torch does the work: ``parallelize_module``,
``fully_shard``, ``torch.distributed.pipelining`` and ``context_parallel``.
"""

from memfit.parallel.config import Parallelism
from memfit.parallel.layout import ModelLayout
from memfit.parallel.model import ParallelModel
from memfit.parallel.parallelize import parallelize

__all__ = ["ModelLayout", "ParallelModel", "Parallelism", "parallelize"]
