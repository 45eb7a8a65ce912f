from __future__ import annotations

import pytest

from penstock.cli.pairs import pairs_of
from penstock.errors import OptionError


def test_pairs_are_split_at_the_first_equals_sign():
    assert pairs_of(["a=1", "b=x=y", "c="], "--tag") == {"a": "1", "b": "x=y", "c": ""}


@pytest.mark.parametrize("text", ["a", "=1", "="])
def test_a_text_without_a_name_or_equals_sign_is_refused(text):
    with pytest.raises(OptionError, match=f"--tag {text}: expected NAME=VALUE$"):
        pairs_of([text], "--tag")


def test_a_file_must_be_named():
    with pytest.raises(OptionError, match=r"--recording a=: expected NAME=FILE$"):
        pairs_of(["a="], "--recording", "NAME=FILE", may_be_empty=False)


def test_a_name_is_given_once():
    with pytest.raises(OptionError, match="--tag a=2: a was given before"):
        pairs_of(["a=1", "a=2"], "--tag")
