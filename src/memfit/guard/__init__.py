"""Memory tests without a GPU.

::

    def test_memory(memfit_predict):                                           a budget
        assert memfit_predict(build, gpu="A100-40GB").peak_reserved < "38GiB"

    def test_memory_has_not_grown():                                           a golden ledger
        memfit.assert_no_regression(build, golden="tests/golden/llama.memfit", gpu="A100-40GB")

    build ──> predict ──> ledger ─┐
                                  ├─> diff ──> grown by more than is tolerated? fails, and shows the diff
    golden ledger, in the repo ───┘            pytest --memfit-update writes the golden ledger again

    golden.py    assert_no_regression, with or without pytest
    session.py   where golden ledgers lie, and whether they are to be written
    plugin.py    what pytest loads: the option, the fixture, what a failing test shows

pytest loads the plugin whenever it starts, so this file imports nothing, and the plugin no torch.
"""
