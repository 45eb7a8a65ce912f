"""What CloudWatch answers to queries about streams, where it does not answer all of them."""

import datetime as dt

import pytest

from penstock.aws import service_calls
from penstock.aws.aws_options import AwsOptions
from penstock.aws.cloudwatch_queries import CloudWatchQueries

AT = dt.datetime.fromtimestamp(60, dt.UTC)
QUERIES = [("IncomingBytes", None), ("IncomingRecords", None), ("OutgoingBytes", "shard")]


def result(number, status, *values, **more):
    return {
        "Id": f"q{number}",
        "StatusCode": status,
        "Timestamps": [AT] * len(values),
        "Values": list(values),
        **more,
    }


@pytest.fixture
def fetch(monkeypatch):
    """Ask `QUERIES` of a CloudWatch that answers with these pages."""

    def fetch(*pages):
        left = list(pages)

        class Client:
            def get_metric_data(self, **_):
                page = {"MetricDataResults": left.pop(0)}
                return {**page, **({"NextToken": "more"} if left else {})}

        monkeypatch.setattr(service_calls, "client_for", lambda *_: Client())
        return CloudWatchQueries(AwsOptions(region="eu-west-1")).fetch("orders", QUERIES, 0, 60_000)

    return fetch


def test_what_failed_is_none_and_told_and_not_taken_for_nothing(fetch):
    message = {"Code": "Forbidden", "Value": "no access"}
    answer = fetch(
        [
            result(0, "InternalError"),
            result(1, "Complete", 5.0),
            result(2, "Forbidden", Messages=[message, message]),
        ]
    )
    assert answer.sums == [None, {60_000: 5.0}, None]
    assert answer.problems == (
        "CloudWatch: Forbidden: no access",
        "CloudWatch did not answer all of 3 queries whole: Forbidden for 1, InternalError for 1; what it left out is unknown",
    )


def test_a_part_is_kept_and_told_where_no_later_page_has_the_rest(fetch):
    rest = [result(1, "Complete"), result(2, "Complete")]
    answer = fetch([result(0, "PartialData", 5.0), *rest])
    assert answer.sums == [{60_000: 5.0}, {}, {}]
    assert answer.problems == (
        "CloudWatch did not answer all of 3 queries whole: PartialData for 1; what it left out is unknown",
    )
    whole = fetch([result(0, "PartialData", 5.0)], [result(0, "Complete"), *rest])
    assert (whole.sums, whole.problems) == ([{60_000: 5.0}, {}, {}], ())
