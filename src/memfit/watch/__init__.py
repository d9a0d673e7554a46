"""A run that is watched without a change to its script.

::

    memfit watch torchrun train.py ──> launch.py ──> the command, with MEMFIT and startup/ in its environment
                                                        │ every Python that it starts
    MEMFIT=run.memfit python train.py ──────────────────┴──> startup/sitecustomize.py or memfit.pth
                                                        │ as soon as it has imported torch and uses CUDA
                                                      program.py ──> memfit.track(..., retention=...) until it ends, however it ends
                                                        └─ against.py: is it as predicted?

    settings.py     what MEMFIT says
    first_call.py   when a program without CUDA first calls a module

``memfit top`` looks at what is written meanwhile: ``memfit.analysis.status``.
"""
