"""A Spark query of version 0.1.0 goes on from its checkpoint location: no record is missing and none is repeated."""

from __future__ import annotations

import pytest

from old_version import NEW, QUERY_S_MAX, go_on_with_the_query


@pytest.mark.timeout(QUERY_S_MAX + 60)
def test_a_query_goes_on_where_the_old_one_stopped(tmp_path):
    assert go_on_with_the_query(tmp_path) == NEW
