"""Where the blocks of a run are seen.

::

    operators/    a dispatch mode looks at the outputs of every operator, on any device
    allocator/    CUDA's allocator keeps a history of every block; Python pays for modules and steps alone

Both feed the position, the roles and the ledger of ``memfit.record``.
"""
