"""Patterns of a JSON Schema: found as `re` finds them, in a time that no text can blow up."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import SchemaMismatch
from penstock.schemas import MemorySchemaRegistry, SchemaDecoder, patterns
from penstock.schemas.header import add_header
from penstock.schemas.patterns import compile_search

COSTLY = [
    r"^(a+)+$",
    r"^(a|a)*$",
    r"^(a|aa)+$",
    r"^([a-z]+)*$",
    r"^(\w+\s?)*$",
    r"(x+x+)+y",
    r"^(a{1,20}){1,20}$",
    r"\s*\s*\s*\s*y",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
]
PATTERNS = [
    *COSTLY,
    r"^[^@\s]+@[^@\s]+(\.[^@\s]+)+$",
    r"(?i)^(ab|cd)*(?-i:E)$",
    r"(\bfoo\b|bar)+\Z",
    r"^(?=.*\d)(?=.*[a-z])(a|\d)+$",
    r"(?!aa)(a|b)*?c",
    r"^(a?){3,5}(b|c){2}$",
    r"^$|^(\d{1,3}\.){3}\d{1,3}$",
    r"(.|\n)*é+(?:ü|ö)*",
    r"(?s)(.a?)*$",
    r"(?m)^(a|b)*$",
    r"(a*)*",
    r"()*(|a)*b",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_states_find_what_re_finds(pattern):
    states = patterns._States(patterns._parser.parse(pattern))

    @given(st.text(alphabet="aabbcdexyA1.@ \nEfoéü", max_size=12))
    def compare(text):
        assert states.search(text) == (re.search(pattern, text) is not None)

    compare()


@pytest.mark.parametrize("pattern", COSTLY)
def test_a_text_that_has_no_match_is_given_up_after_one_pass(pattern):
    assert patterns._is_costly(patterns._parser.parse(pattern))
    assert not compile_search(pattern)("a" * 3_000 + "!")


@pytest.mark.parametrize(
    "pattern",
    [r"^[A-Z]{2}\d{6}$", r"^\d+(\.\d+)?$", r"^(EUR|USD)$", r"^\S+@\S+$", r"^(a|b)c*$", r"^(ab){3}$"],
)
def test_a_simple_pattern_is_left_to_re(pattern):
    assert not patterns._is_costly(patterns._parser.parse(pattern))


@pytest.mark.parametrize("pattern", [r"^(a+)+\1$", r"^(?:a{1,9}){1,5000}$", r"^(a|b)*+$"])
def test_a_pattern_that_states_cannot_follow_is_left_to_re(pattern):
    assert compile_search(pattern)("aa") == (re.search(pattern, "aa") is not None)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 5_000 + "!"),
        (
            {"patternProperties": {"^(a+)+$": {"type": "string"}}, "additionalProperties": False},
            {"a" * 5_000 + "!": 1},
        ),
    ],
)
def test_a_costly_pattern_of_a_schema_refuses_a_text(schema, value):
    registry = MemorySchemaRegistry()
    version_id = registry.add("s", schema, "JSON")
    decoder = SchemaDecoder(registry=registry, validate_json=True)
    with pytest.raises(SchemaMismatch, match=r"does not match|none matches"):
        decoder.decode(add_header(version_id.bytes, json.dumps(value).encode(), compress=False))
