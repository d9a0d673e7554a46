"""``torch.compile`` and CUDA graphs.

::

    passed_over.py   compiled code runs as it is written; the assumptions say so
"""
