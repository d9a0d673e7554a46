"""What is said to people, in sentences; every view takes its words from here.

::

    recipe.py       what a run is about, in one line
    moments.py      moments, steps and spans of time
    timing.py       how long a step takes, and where the time goes
    course.py       which batch was the largest, which evaluation the highest
    comparison.py   what a table of configurations says, and what to do
    largest.py      the largest batch or sequence that fits
    plan.py         what a search found, how it searched, and how sure it is
    watching.py     how a watched run compares with its prediction
    calibration.py  what ``memfit calibrate`` prints
    gpu_facts.py    which facts about a GPU were measured, published or assumed
    diagnosis.py    what ``memfit doctor`` prints

A verdict is put into words in ``views/verdicts.py``, beside its bar on the terminal.
"""
