"""A run that is watched without a change to its script.

::

    memfit watch torchrun train.py ──> launch.py ──> the command, with MEMFIT and startup/ in its environment
                                                        │ every Python that it starts
    MEMFIT=run.memfit python train.py ──────────────────┴──> startup/sitecustomize.py or memfit.pth
                                                        │ program.py: as soon as it imports torch
                                                        │ and uses CUDA
                                                      recording.py ──> memfit.track(..., retention=...) until it ends
                                                        ├─ ending.py: by whatever signal
                                                        └─ against.py: is it as predicted?
    memfit train --plan plan.json ... ──> launch.py, and MEMFIT_PLAN in place of MEMFIT: memfit.plan.applying.programs

    settings.py     what MEMFIT says, and which file is written
    first_call.py   when a program without CUDA first calls a module

``memfit top`` looks at what is written meanwhile: ``memfit.analysis.status``.
"""
