"""The whole run: the script's loop goes on to its end, and calls that repeat are written down, not run.

::

    model(x)   known_calls.py ── keys.py       what decides a call: module, modes, arguments, gradients
    backward        │            readings.py   values that decide it too: is there padding?
                    │            lengths.py    calls that differ in sizes alone ── sizes.py: numbers that follow from sizes
                    v
               calls.py          what a call did: windows.py takes stretches out of the ledger, and writes them again
                    │            stand_ins.py  tensors and a node of autograd's graph in the place of what was not run
                    v
    LedgerBuilder.append
    optimizer.step()   known_steps.py

    coverage.py        counts what was seen, so that a verdict can say it
"""
