"""Tensors without data.

::

    mode.py                 PhantomMode, the dispatch mode: which tensors hold data and which do not
    dispatch_cache.py       what an operator returned for the same shapes, it returns again
    modified_views.py       gradients of views that were changed in place
    sparse.py               sparse tensors: indices and values without data
    threads.py              threads that a script starts are in the world as well
    forks.py                forked children, such as a data loader's workers, are not
    models.py               models and parameters: moved and cast, initialised, classes of libraries, built before the world
    unknown_operators.py    operators of others that say nothing of what they return, or that data decide
    classes.py              type(x) of a tensor without data, as a script sees it
    torch_state.py          what a script sets for all of torch; inference mode
    tensor_annotations.py   what memfit writes onto tensors, by name
"""

__not_compiled__ = True
