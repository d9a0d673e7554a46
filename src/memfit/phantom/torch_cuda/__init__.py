"""``torch.cuda``'s answers.

::

    module.py           torch.cuda and torch.accelerator, function by function
    autocast.py         CUDA's autocast lists
    tools.py            markers, sensors, memory history, tensor types; what torch remembers of the machine
"""
