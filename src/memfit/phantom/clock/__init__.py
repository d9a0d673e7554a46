"""The clock of a phantom GPU.

::

    every operator        operator_clock.py ──> describe.py ──> memfit.timing ──> Timeline
    every collective      communication.py     on a stream of its group's own
    every other kernel    launches.py          Triton's, by hand or by torch.compile
    Python of torch's     python_parts.py      policies of checkpointing, distributed tensors
"""

__not_compiled__ = True
