"""What a prediction passes over or refuses.

::

    checkpoints.py    saving and loading without data
    refusals.py       what needs a real GPU: an error that names it and says what to do
    transformers.py   no library takes the prediction for a compiler at work
"""
