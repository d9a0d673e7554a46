"""Other processes that do the work: for compare and plan, and for the ranks of a job.

::

    executors.py ── Runner: takes jobs, gives futures; on this machine, a Dask cluster, Slurm or any executor
        │
        v
    lanes.py ────── WorkerLane: one worker process, which answers job after job ──> worker.py, the process itself
    forking.py ──── in_a_child(make): this process, copied, where torch in it must stay as it is

``lanes.py`` also knows the machine: its cores, and whether it can fork. Only ``forking.py`` and ``worker.py`` import torch.
"""
