"""What the report shows over time.

::

    timeline.py   memory over the run, at every zoom        lanes.py      the last step over milliseconds, by stream
    levels.py     how full the device was over all steps    segments.py   what lies where in the allocator's segments
"""
