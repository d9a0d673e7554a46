"""Commands about this machine.

::

    doctor.py      what memfit finds on it
    calibrate.py   its GPU, measured
    serve.py       a page on it
    completion.py  its shells
"""
