"""Tensors without data.

::

    mode.py              PhantomMode, the dispatch mode: which tensors hold data and which do not
    dispatch_cache.py    what an operator returned for the same shapes, it returns again
    parameters.py        modules that can be moved and cast; foreach optimizers
    defaults.py          what a script sets for all of torch is put back
    notes.py             what memfit writes onto tensors, by name
    existing_models.py   models that were built before the world was entered, with data
"""
