"""What the step time of a job is made of."""

from __future__ import annotations

import numpy as np
import pytest

from memfit.ledger import Phase
from memfit.predict.step_time import phase_of_scopes


@pytest.mark.parametrize("scopes", [[Phase.BACKWARD, Phase.FORWARD], []], ids=["some", "none"])
def test_no_phase_is_told_from_all_phases_although_a_ledger_keeps_unsigned_numbers(scopes: list[Phase]):
    """numpy 2.5 refuses a -1 among unsigned numbers, older ones made it 255 without a word."""
    found = phase_of_scopes(np.array([-1, *range(len(scopes))]), np.array(scopes, dtype=np.uint8))
    assert found.tolist() == [-1, *scopes]
    assert found.dtype == np.int64
