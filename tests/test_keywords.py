"""The typed keywords of public functions have the names and the types of the options that they stand for."""

import dataclasses

import pytest

from penstock.consumer import AsyncConsumerKeywords, ConsumerArguments, ConsumerKeywords, ConsumerOptions
from penstock.consumer.consumer import Consumer
from penstock.producer import ProducerKeywords, ProducerOptions
from penstock.queues import QueueConsumerKeywords, QueueConsumerOptions
from penstock.spark import SinkKeywords
from penstock.spark.options.spark_options import OPTIONS
from penstock_local import Fault, FaultKeywords, LocalKeywords, LocalOptions


def typed(keywords):
    return {name: kind.__forward_arg__ for name, kind in keywords.__annotations__.items()}


@pytest.mark.parametrize(
    ("keywords", "options", "without"),
    [
        (ConsumerKeywords, ConsumerOptions, set()),
        (AsyncConsumerKeywords, ConsumerOptions, {"handler_threads"}),
        (ProducerKeywords, ProducerOptions, set()),
        (LocalKeywords, LocalOptions, set()),
        (QueueConsumerKeywords, QueueConsumerOptions, set()),
        # Methods of their own say the kind and the operation, and what only their kind has.
        (FaultKeywords, Fault, {"kind", "operation", "delay_s", "after_events"}),
    ],
)
def test_keywords_are_the_fields_of_their_options(keywords, options, without):
    fields = {field.name: field.type for field in dataclasses.fields(options) if field.name not in without}
    assert typed(keywords) == fields


def test_keywords_of_a_consumer_are_its_parameters():
    own = typed(ConsumerArguments).keys() - typed(ConsumerKeywords).keys()
    parameters = set(Consumer.__init__.__annotations__)
    user_code = {"stream", "application", "handler", "processor_factory"}
    assert own == parameters - user_code - {"single_options", "return"}


def test_keywords_of_the_sink_are_its_options():
    names = {option.name for option in OPTIONS if "sink" in option.scopes}
    assert typed(SinkKeywords) == dict.fromkeys(names - {"streamName", "streamARN"}, "str")
