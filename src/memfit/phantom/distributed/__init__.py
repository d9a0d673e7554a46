"""One rank of a world of processes that are not there.

::

    environment.py         what a launcher tells each process, and processes that a script starts for its ranks
    process_groups.py      process groups, collectives, meshes
    pipelines.py           stages of pipelines, whose neighbours are not there
    layout.py              how ranks are arranged: meshes, pipelines, unequal shards
    rank_shortcuts.py      work that torch does once for every rank, done once

What engines (DDP, FSDP) do in C++ or ask the other ranks is in ``memfit.engines``.
"""

__not_compiled__ = True
