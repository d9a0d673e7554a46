"""One device with two names: ``cuda`` to Python, a device kind of our own to C++.

::

    device_alias.py    the device itself, and who is told which name
    streams.py         streams and events, which know who they are and when they are done
    properties.py      torch.cuda.get_device_properties()
    memory.py          host memory that says it is pinned, data_ptr() of memory that is not there
    generators.py      random number generators that draw nothing
"""

__not_compiled__ = True
