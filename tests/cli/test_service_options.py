"""How long commands wait for the service."""

import argparse

from penstock.cli import service_options

ARGS = argparse.Namespace(region="eu-west-1", endpoint_url=None, profile=None)


def test_no_connection_and_no_answer_is_waited_for_longer_than_the_deadline():
    options = service_options.options_of(ARGS)
    assert options.connect_timeout_s <= options.deadline_s
    assert options.read_timeout_s <= options.deadline_s


def test_the_connection_is_repeated_for_another_command_without_a_password():
    assert service_options.connection_arguments_of(ARGS) == ("--region", "eu-west-1")
    given = argparse.Namespace(region=None, endpoint_url="http://me:secret@localhost:4567", profile="my own")
    expected = ("--endpoint-url", "http://localhost:4567", "--profile", "my own")
    assert service_options.connection_arguments_of(given) == expected
