"""What the trackers are made of: a ledger, told as PyTorch tells it.

::

    torch_categories.py   categories and states, spelled as PyTorch spells them
    tracker_snapshots.py  a ledger in the shape that PyTorch's methods return
    display.py            what the display methods print
    module_entries.py     memory_tracking: one dictionary that callers may change
    fake_values.py        what only data can tell, assumed on fake tensors
"""
