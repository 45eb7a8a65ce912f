"""Statements that Spark's SQL refuses for a source in Python, as docs/spark.md says."""

import pytest
from pyspark.errors import AnalysisException

from penstock.spark.engine import PASSES_START

ROW = "SELECT 'k' AS partitionKey, 'x' AS data"


@pytest.fixture
def table(spark, stream):
    name = f"table_{stream.replace('-', '_')}"
    spark.sql(f"CREATE TABLE {name} USING kinesis OPTIONS (streamName '{stream}')")
    yield name
    spark.sql(f"DROP TABLE {name}")


@pytest.mark.skipif(not PASSES_START, reason="the page has the words of the newest Spark")
def test_spark_refuses_what_the_page_says(spark, stream, table):
    given = f"WITH (streamName = '{stream}')"
    refused = {
        f"SELECT * FROM kinesis.`{stream}`": "UNSUPPORTED_DATASOURCE_FOR_DIRECT_QUERY",
        f"SELECT * FROM read_kinesis(streamName => '{stream}')": "UNRESOLVABLE_TABLE_VALUED_FUNCTION",
        f"SELECT * FROM STREAM {table} {given}": "Spark Declarative Pipeline",
        f"INSERT INTO {table} {given} {ROW}": "INSERT_COLUMN_ARITY_MISMATCH",
    }
    for statement, answer in refused.items():
        with pytest.raises(AnalysisException, match=answer):
            spark.sql(statement).collect()
