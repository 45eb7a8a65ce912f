"""A reader's words find the page that answers, in the search of the built site."""

import pytest

from site_index import search

FOUND = {
    "IAM": "cluster/#iam-permissions",
    "permissions": "cluster/#iam-permissions",
    "stuck": "operations/#lag",
    "lag": "operations/#lag",
    "replay": "operations/#replay",
    "parallelism": "spark/#parallelism",
    "back-pressure": "spark/#back-pressure",
    "backpressure": "spark/#back-pressure",
    "time zone": "operations/#timestamps-and-time-zones",
    "timezone": "operations/#timestamps-and-time-zones",
    "poison": "operations/#poison-records",
    "dead letter": "recipes/#dead-letters-dlq",
    "DLQ": "recipes/#dead-letters-dlq",
    "gunzip": "recipes/#gunzip-and-zstd-payloads",
    "migrate": "coming-from/",
    "kafka": "coming-from/#kafka",
    "localstack": "coming-from/#localstack-moto-ministack-kinesalite-and-kinesis-local-as-a-test-double",
    "cloudwatch logs": "recipes/#cloudwatch-logs-subscriptions",
    "price": "costs/",
    "cost": "costs/",
}
"""For each query: the page, and its section."""


@pytest.fixture(scope="module")
def found():
    return search(FOUND)


@pytest.mark.parametrize("query", FOUND)
def test_a_query_finds_its_section_first(query, found):
    assert [sections[0] for sections in found[query]][:1] == [FOUND[query]]


def test_a_page_of_the_python_api_is_first_for_no_query(found):
    assert not [query for query, pages in found.items() if pages[0][0].startswith("api/")]
