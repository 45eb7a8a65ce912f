"""The lines of docs/cluster.md that submit a job: what they send is what the service's own model takes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import botocore.session
import pytest
from botocore.validate import ParamValidator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
COMMAND = re.compile(
    r"^aws (emr-serverless|emr-containers|emr) ([a-z-]+) ((?:\\\n|[^'\n\\]|'[^']*')*)$", re.MULTILINE
)


def commands():
    return [
        (service, operation, shlex.split(rest.replace("\\\n", " ")))
        for service, operation, rest in COMMAND.findall(PAGE.read_text())
    ]


def value_of(text):
    """A value of the command line: JSON, or the short form `Name=value`."""
    if text.startswith(("{", "[")):
        return json.loads(text)
    if "=" in text:
        name, _, value = text.partition("=")
        return {name: int(value) if value.isdigit() else value}
    return text


def arguments_of(words):
    found, name = {}, None
    for word in words:
        if word.startswith("--") and name is None:
            name = word[2:]
            continue
        if name is not None and word.startswith("--"):
            found[name], name = True, word[2:]
            continue
        found[name], name = value_of(word), None
    return found


def test_the_page_has_a_line_for_each_service():
    assert [(service, operation) for service, operation, _ in commands()] == [
        ("emr-serverless", "create-application"),
        ("emr-serverless", "start-job-run"),
        ("emr", "create-cluster"),
        ("emr", "add-steps"),
        ("emr-containers", "start-job-run"),
    ]


@pytest.mark.parametrize("place", [0, 1, 4])
def test_what_a_line_sends_is_what_the_service_takes(place):
    service, operation, words = commands()[place]
    model = botocore.session.Session().get_service_model(service)
    shape = model.operation_model("".join(part.title() for part in operation.split("-"))).input_shape
    members = {name.lower(): name for name in shape.members}
    given = {members[name.replace("-", "")]: value for name, value in arguments_of(words).items()}
    given.setdefault(members["clienttoken"], "made by the command line")
    assert ParamValidator().validate(given, shape).generate_report() == ""


def test_every_job_gets_the_packed_environment():
    submitted = [words for _, operation, words in commands() if operation in {"start-job-run", "add-steps"}]
    assert len(submitted) == 3
    for words in submitted:
        text = " ".join(words)
        assert "s3://bucket/environment.tar.gz#environment" in text
        assert "=./environment/bin/python" in text
