"""How large may it be?

::

    max_batch.py, max_seq.py ──> asking.py: what both take, and what they do
"""
