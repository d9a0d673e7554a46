"""``torch.compile`` and CUDA graphs.

::

    control_flow.py  torch.cond and while_loop run the branch that is taken
    passed_over.py   compiled code runs as it is written; the assumptions say so
"""
