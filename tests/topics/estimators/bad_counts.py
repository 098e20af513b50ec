"""Counts that every topic estimator must refuse."""

import numpy as np
import pytest


def refuses_bad_counts(model):
    """Check that each is refused with a message that states the reason."""
    for counts, message in [
        ([[1, -1], [2, 0]], f"Negative values in data passed to {type(model).__name__}"),
        ([[1.5, 1], [2, 0]], "document 0 has count 1.5 for word 0.*tf-idf"),
        ([[np.nan, 1], [2, 0]], "contains NaN"),
        (np.zeros((3, 0)), "0 feature"),
        (np.zeros((3, 2)), "every count is zero"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.fit(np.array(counts, float))
