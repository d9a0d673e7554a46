"""Training loops that somebody else runs.

::

    Hugging Face Trainer ──> huggingface.MemfitCallback ──┐                  ┌─> run.memfit: the chosen steps, one ledger
    Lightning Trainer ─────> lightning.MemfitCallback ────┴──> StepRecorder ─┼─> oom.memfit, if memory runs out
                                                                             └─> scalars: each chosen step's peak, by category

    steps.py    enters a tracker for the chosen steps; whatever goes wrong here, the training goes on

Scalars go to the loggers that the loop has (TensorBoard, W&B, any other) through its own logging, so that memfit depends on none of
them. Import the module of the loop you use; nothing is imported from here.
"""
