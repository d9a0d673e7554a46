"""``memfit serve``: the questions of the command line, asked and answered on a page of this machine.

::

    the page (web/src/serve*.ts) ──> guard.py ──> app.py ──┬─> questions.py   what the controls say becomes a Configuration
                                     token, Host, Origin   │   controls.py    the controls, from the table that the flags are from
                                                           ├─> instant.py     bounds and the cache: an answer in milliseconds
                                                           ├─> desk.py        the exact answer: one worker process a core, cancelled
                                                           │     └─> answers.py  when the question changes; what the worker does
                                                           └─> folder.py      ledgers of the folder, and jobs that are being watched

    seen.py      what is shown of a ledger, in plain values
    wording.py   an answer as the page shows it: figures as text, bars as shares
    picture.py   memory over a step, as shapes

The page counts nothing: every number on it, also those that bars are drawn by, comes from here. Needs ``memfit[serve]``: Starlette
and uvicorn. Torch is imported by the workers alone.
"""
