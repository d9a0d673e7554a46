"""Found by every Python that a watched command starts, before its script runs. It costs a look at the environment.

A ``sitecustomize`` of the user's own, which this one hides, is run as it would have been.
"""

import importlib
import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _here]
_own = sys.modules.pop("sitecustomize")
if importlib.util.find_spec("sitecustomize") is not None:
    importlib.import_module("sitecustomize")  # the user's
sys.modules.setdefault("sitecustomize", _own)

if os.environ.get("MEMFIT") or os.environ.get("MEMFIT_PLAN"):
    try:
        from memfit.watch.program import begin

        begin()
    except Exception as error:
        sys.stderr.write(f"memfit: not watching: {error!r}\n")
