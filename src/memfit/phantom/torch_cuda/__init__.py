"""``torch.cuda``'s answers.

::

    module.py           torch.cuda and torch.accelerator, function by function
    autocast.py         CUDA's autocast lists
    tensor_types.py     torch.cuda.FloatTensor and its kin
    markers.py          NVTX markers and profilers
    sensors.py          temperature, power, NCCL's version, the CUDA runtime
    memory_tools.py     memory history, snapshots and pools
    cached_answers.py   what torch remembers of the machine, forgotten on the way in and out
"""
