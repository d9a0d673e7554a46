"""The commands, a file for each: what it takes (``add_parser``) and what it does (``run``).

::

    before a run    predict.py, run.py, compare.py, plan.py, demo.py, largest/
    a run           train.py, watch.py, top.py
    after it        show.py, report.py, diff.py, export.py, fit.py, explain.py
    this machine    machine/
"""
