"""Memory tests that need no GPU: pytest."""

from pathlib import Path

from model import build

import memfit

GOLDEN = Path(__file__).parent / "golden" / "model.memfit"


def test_it_fits_the_budget(memfit_predict):
    assert memfit_predict(build, gpu="T4").peak_reserved < "1GiB"


def test_it_needs_no_more_than_it_did():
    memfit.assert_no_regression(build, golden=GOLDEN, tolerance="1%", gpu="T4")
