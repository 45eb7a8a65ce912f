"""User names and passwords in endpoint URLs."""

from __future__ import annotations

import pytest

from penstock.core.endpoint import has_user, without_user


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://user:hush@host:443/path", "https://host:443/path"),
        ("https://user@host", "https://host"),
        ("https://user:hu/sh@ed@host", "https://host"),
        ("https://host/path", "https://host/path"),
    ],
)
def test_a_user_and_a_password_are_taken_out_of_an_endpoint(url, clean):
    assert without_user(url) == clean
    assert has_user(url) == (url != clean)
    assert not has_user(clean)
