"""A thousand deliveries that are killed at random calls to the file system."""

from __future__ import annotations

import pytest

from killed_batches import run


@pytest.mark.parametrize("first_seed", range(0, 1000, 100))
def test_each_row_is_there_once_after_a_hundred_deliveries(tmp_path, first_seed):
    for seed in range(first_seed, first_seed + 100):
        run(f"{tmp_path}/{seed}", seed, 3)
