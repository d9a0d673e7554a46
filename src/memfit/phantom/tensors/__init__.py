"""Tensors without data.

::

    mode.py              PhantomMode, the dispatch mode: which tensors hold data and which do not
    dispatch_cache.py    what an operator returned for the same shapes, it returns again
    sparse.py            sparse tensors: indices and values without data
    threads.py           threads that a script starts are in the world as well
    forks.py             forked children, such as a data loader's workers, are not
    subclasses.py        classes of tensors and parameters that libraries make for themselves
    parameters.py        modules that can be moved and cast; foreach optimizers
    defaults.py          what a script sets for all of torch is put back
    tensor_annotations.pywhat memfit writes onto tensors, by name
    existing_models.py   models that were built before the world was entered, with data
"""

__not_compiled__ = True
