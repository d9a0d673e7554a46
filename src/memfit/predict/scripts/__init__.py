"""A whole program, as people start it, becomes a prediction.

::

    memfit run torchrun ... train.py
        │   launchers.py          what was typed: program, processes, environment
        │   dry_run.py            in a child whose files are thrown away (memfit.overlay)
    run_script(job, options)  running.py
        │   started_programs.py   what it only starts is followed in its place
        │   stopping.py           to its end, or until time is up; then epochs.py ends the epoch
        │   memfit.predict.run    what only repeats is not run again
        v
    PhantomSession  predict/session.py
"""
