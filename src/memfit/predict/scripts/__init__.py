"""A whole program, as people start it, becomes a prediction.

::

    memfit run torchrun ... train.py
        │   launchers.py          what was typed: program, processes, environment
        │   dry_run.py            in a child whose files are thrown away (memfit.overlay)
    run_script(job, options)  running.py
        │   started_programs.py   what it only starts is followed in its place
        │   stopping.py           until memory has settled
        │   epochs.py             loops over data loaders are cut short
        │   evaluations.py        what only repeats is cut short
        v
    PhantomSession  predict/session.py
"""
