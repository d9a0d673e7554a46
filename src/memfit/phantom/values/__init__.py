"""What is known of data that is not there.

::

    answers.py       what .item(), nonzero and similar calls return: known, expected or assumed
    constants.py     tensors whose elements are all one known number
    host_data.py     small tensors that came from the host keep their data
    routing.py       how much of a mask is set: tokens spread evenly over experts
    host_draws.py    the host's random numbers go on as in a real run
    mersenne_twister.py  ... by any number of draws at once
    assertions.py    what a script asserts holds
    assumptions.py   what had to be assumed, each once, and what the user expects: {"train.py:31": 128}
"""

__not_compiled__ = True
