"""Names that moved go on for one release, and say where they are now."""

import importlib
import sys

import pytest

import penstock_local


def test_the_former_place_of_the_embedded_kinesis_warns_and_has_the_same_names():
    sys.modules.pop("penstock.local", None)
    with pytest.warns(DeprecationWarning, match="penstock_local"):
        former = importlib.import_module("penstock.local")
    assert former.LocalKinesis is penstock_local.LocalKinesis
    assert set(former.__all__) <= set(penstock_local.__all__)
