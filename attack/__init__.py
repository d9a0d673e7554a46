"""Attacks on memfit: mutated files, full disks, missing descriptors, and whatever else must not make it fall over.

::

    attacks/*.py     one file an attack: what it does to memfit, once, from a random number
         │
    runner.py        repeats each in processes of their own, which may die: two at a time, until its share of the time is over
         │           watched: signals, CPU time and wall time of a case, memory, tracebacks, anything executed or written elsewhere
         v
    table.py         what was tried, what held; the exit status says whether anything fell

    protocol.py      what an attack is
    commands.py      memfit's commands, in this process and in others
    mutations.py     bytes, numbers and plain data, damaged at random
    samples.py       sound files to start from

``make attack`` runs all of it for ten minutes, ``make attack LONG=1`` for an hour. Everything follows from the seed: a case that
fell is repeated with ``python -m attack --only NAME --case NUMBER --seed SEED``. To add an attack, put a file into ``attacks/``
that has an instance of a subclass of ``Attack`` under the name ``ATTACK``.
"""
