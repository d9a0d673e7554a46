"""What a dry run writes, kept apart from the files that are there, and thrown away.

::

    a script writes, deletes, renames ──> namespace.py   the operating system's overlay, in a mount namespace of its own (Linux)
                                     └──> fence.py       where there is none: writing is refused outside one folder (Linux), and
                                          in_python.py   Python's file functions are led into that folder
                                            calls.py        open, os.*, and what is built on them
                                            path_writers.py torch, safetensors, sqlite3, h5py: they open paths themselves
                                            union.py        which file is meant: that of before, or what the run has written
                                            sockets.py      where processes meet
    store.py   where it goes               state.py       who keeps files apart, and what that promises

Later reads of the same run see what it wrote, so that saving, replacing, rotating and resuming work as in a real run.
"""

from memfit.overlay.state import in_force

__all__ = ["in_force"]
