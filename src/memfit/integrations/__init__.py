"""Callbacks for other libraries' training loops.

::

    Hugging Face Trainer ──> huggingface.MemfitCallback ──┐                  ┌─> run.memfit: the chosen steps, one ledger
    Lightning Trainer ─────> lightning.MemfitCallback ────┴──> StepRecorder ─┼─> oom.memfit, if memory runs out
                                                                             └─> scalars: each chosen step's peak, by category

    huggingface.py, lightning.py   the callbacks
    steps.py                       StepRecorder: a tracker for the chosen steps; a failure of memfit does not end the training
    loggers.py                     scalars for TensorBoard, W&B, MLflow

Scalars go to the loggers that the loop has (TensorBoard, W&B, any other) through its own logging, so that memfit depends on none of
them. Import the module of the loop you use; nothing is imported from here.
"""
