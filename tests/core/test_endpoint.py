"""User names and passwords in endpoint URLs, and the endpoints of Kinesis itself."""

from __future__ import annotations

import pytest

from penstock.core.endpoint import has_user, kinesis_region, without_user


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


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://kinesis.us-east-1.amazonaws.com", "us-east-1"),
        ("https://Kinesis.cn-north-1.amazonaws.com.cn:443/", "cn-north-1"),
        ("https://kinesis.us-gov-west-1.api.aws", "us-gov-west-1"),
        ("https://123456789012.control-kinesis.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://kinesisvideo.us-east-1.amazonaws.com", None),
        ("https://kinesis.us-east-1.amazonaws.com.example", None),
        ("https://dynamodb.us-east-1.amazonaws.com", None),
        ("http://127.0.0.1:4567", None),
        ("kinesis", None),
        ("https://[", None),
        (None, None),
    ],
)
def test_an_endpoint_of_kinesis_itself_names_its_region(url, region):
    assert kinesis_region(url) == region
