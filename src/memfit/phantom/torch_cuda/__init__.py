"""``torch.cuda``'s answers.

::

    module.py           torch.cuda and torch.accelerator, function by function
    nvidia_smi.py       the program, for scripts that start it
    autocast.py         CUDA's autocast lists
    tools.py            markers, loss scalers, sensors, memory history, tensor types; what torch remembers of the machine
"""
