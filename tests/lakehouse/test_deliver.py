"""`penstock deliver` into Delta Lake and Apache Iceberg: each record once, whatever step is killed; columns that grow; tables that were there.

It needs the jars, as the recipes do: `make test-lakehouse`.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark import __version__ as spark_version

import changing_orders as changing
from killed_steps import kill_at
from lake_jars import JARS, may_have
from lake_recipes import packages
from penstock.core.delivering.manifest import Identity, Manifest
from penstock.errors import DeliveryFailed, OptionError

SPARK_LINE = ".".join(spark_version.split(".")[:2])
LAKES = ("delta", "iceberg")
STEPS = ("dead letters", "commit", "end")


@pytest.fixture(scope="module")
def lake_spark(running_kinesis, tmp_path_factory):
    """The session that the command would open: it names the packages of both lakes itself."""
    from penstock.delivery.running import open_session

    lakes = [lake for lake, package in packages(SPARK_LINE).items() if may_have(package)]
    if not lakes:
        pytest.skip(f"no lake for Spark {SPARK_LINE}, or its jars cannot be reached")
    warehouse = tmp_path_factory.mktemp("warehouse")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in running_kinesis.environ().items():
            environment.setenv(name, value)
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        settings = {
            "spark.jars.ivy": str(JARS),
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.codegen.wholeStage": "false",
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": str(warehouse),
            "spark.sql.warehouse.dir": str(warehouse / "spark"),
        }
        session = open_session("local[2,4]", settings, is_verbose=False, formats=lakes)
    yield session
    session.stop()


class Lake:
    """A stream, a table, and deliveries from one to the other."""

    def __init__(self, lake, spark, kinesis, folder):
        self._spark, self._kinesis = spark, kinesis
        self.lake, self.stream = lake, f"s-{uuid.uuid4().hex[:10]}"
        self.state = folder / "state"
        if lake == "delta":
            self.to, self.table = str(folder / "orders"), f"delta.`file://{folder}/orders`"
        else:
            self.to = self.table = f"lake.d{uuid.uuid4().hex[:10]}.orders"
            spark.sql(f"CREATE NAMESPACE {self.to.rpartition('.')[0]}")
        kinesis.create_stream(self.stream, shards=2)

    def sql(self, text):
        if self.lake == "iceberg" and self._spark.catalog.tableExists(self.table):
            self._spark.catalog.refreshTable(self.table)  # the deliveries have sessions of their own
        return self._spark.sql(text.format(table=self.table))

    def put(self, lines):
        answer = self._kinesis.client("kinesis").put_records(
            StreamName=self.stream,
            Records=[{"PartitionKey": str(number), "Data": line} for number, line in enumerate(lines)],
        )
        assert answer["FailedRecordCount"] == 0

    def checked(self, **given):
        from penstock.core.delivering.definition import parse_delivery
        from penstock.delivery.running import check_deliveries

        values = {
            "stream": self.stream,
            "to": self.to,
            "format": self.lake,
            "state": str(self.state),
            "options": {"fetchInterval": "0ms", "probeInterval": "200ms"},
        }
        return check_deliveries([parse_delivery({**values, **given})])

    def preview(self, **given):
        from penstock.delivery.preview import preview

        return preview(self._spark, *self.checked(**given)[0])

    def deliver(self, at_step=lambda _step: None, *, redelivers=False, **given):
        from penstock.delivery.running import DeliveryRun

        reports = []
        checked = self.checked(**given)
        run = DeliveryRun(self._spark, checked, reports.append, at_step, is_redelivery=redelivers)
        run.redeliver() if redelivers else run.run(once=True)
        return reports

    def ids(self):
        return sorted(row.id for row in self.sql("SELECT id FROM {table}").collect())

    def kinds(self):
        return {row.col_name: row.data_type for row in self.sql("DESCRIBE {table}").collect() if row.col_name}

    def letters(self):
        found = sorted(Path(self.state).glob("*/dead-letters/*.jsonl"))
        return sorted(
            base64.b64decode(json.loads(line)["data"])
            for path in found
            for line in path.read_text().splitlines()
        )


@pytest.fixture(params=LAKES)
def lake(request, lake_spark, kinesis, tmp_path):
    if request.param not in packages(SPARK_LINE):
        pytest.skip(f"no {request.param} for Spark {SPARK_LINE}")
    return Lake(request.param, lake_spark, kinesis, tmp_path)


class Table:
    """A target without a stream: batches are rows of Spark's SQL."""

    def __init__(self, lake, spark, folder, **given):
        from penstock.core.delivering.definition import parse_delivery
        from penstock.delivery.targets.opening import open_target

        self.spark, self.folder, self.lake = spark, folder, lake
        self.to = f"{folder}/orders" if lake == "delta" else f"lake.t{uuid.uuid4().hex[:10]}.orders"
        self.name = f"delta.`file://{folder}/orders`" if lake == "delta" else self.to
        values = {"stream": "orders", "to": self.to, "format": lake, "state": f"{folder}/state"}
        if "to" in given:
            self.to = self.name = given["to"]
        self.delivery = parse_delivery({**values, **given})
        self.target = open_target(spark, self.delivery, "the id")

    def open(self, delivery_id="the id", **given):
        from penstock.core.delivering.definition import parse_delivery
        from penstock.delivery.targets.opening import open_target

        values = {"stream": "orders", "to": self.to, "format": self.lake, "state": f"{self.folder}/state"}
        return open_target(self.spark, parse_delivery({**values, **given}), delivery_id)

    def manifest(self, label, query):
        folder = f"{self.folder}/{uuid.uuid4().hex}"
        self.spark.sql(query).write.parquet(f"file://{folder}")
        placed = self.target.plan(label, [(f"{folder}/file", 1)], folder)
        return Manifest(
            delivery="orders",
            batch=label,
            identity=Identity("1", "2", 1, 2),
            row_count=1,
            dead_count=0,
            moves=(),
            rows=placed.rows,
            state_before=placed.state_before,
        )

    def rows(self, columns="id"):
        if self.lake == "iceberg":
            self.spark.catalog.refreshTable(self.name)
        return sorted(tuple(row) for row in self.spark.sql(f"SELECT {columns} FROM {self.name}").collect())


def schema(ddl):
    from penstock.delivery.json_rows import columns_of

    return columns_of(ddl)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lake", LAKES)
def test_a_repeated_batch_is_in_the_table_once_and_columns_are_added_and_widened(lake, lake_spark, tmp_path):
    table = Table(lake, lake_spark, tmp_path, **{"partition-by": "country"})
    table.target.check(schema("id INT, country STRING"))
    assert table.target.needed_changes(schema("id INT, country STRING"))[0].startswith(
        "the first batch creates"
    )
    first = table.manifest("000000000", "SELECT 1 AS id, 'de' AS country")
    table.target.commit(first)
    table.target.commit(first)
    second = table.manifest("000000001", "SELECT 2 AS id, 'fr' AS country, 'x' AS note")
    table.target.commit(second)
    other = table.manifest("range.1.2", "SELECT 3 AS id, 'de' AS country")
    table.target.commit(other)
    for each in (first, second, other):
        table.target.commit(each)
    assert table.rows("id, country, note") == [(1, "de", None), (2, "fr", "x"), (3, "de", None)]
    assert table.open(**{"partition-by": "country"}).known_columns().names == ["id", "country", "note"]
    assert sorted(table.target.batches()) == ["000000001", "range.1.2"]
    assert [*table.open("another id").batches()] == []

    if lake == "delta":
        with pytest.raises(OptionError, match=r"delta\.enableTypeWidening"):
            table.target.check(schema("id BIGINT, country STRING"))
        lake_spark.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    table.target.check(schema("id BIGINT, country STRING"))
    table.target.commit(table.manifest("000000002", "SELECT 4000000000L AS id, 'de' AS country"))
    assert table.rows()[-1] == (4000000000,)

    with pytest.raises(OptionError, match="STRING does not fit"):
        table.target.check(schema("id STRING, country STRING"))
    with pytest.raises(OptionError, match="partitioned by country, not by date"):
        table.open(**{"partition-by": "date(arrived)"}).check(schema("id BIGINT, country STRING"))
    with pytest.raises(DeliveryFailed, match="has rows of a delivery orders"):
        table.open("another id").check(schema("id BIGINT, country STRING"))


def test_a_delta_without_the_classes_that_list_transactions_lists_no_batch(lake_spark, tmp_path):
    table = Table("delta", lake_spark, tmp_path)
    table.target.commit(table.manifest("000000000", "SELECT 1 AS id"))
    own = table.target._table
    own._spark = SimpleNamespace(_jvm=lake_spark._jvm.of.databricks, _jsparkSession=lake_spark._jsparkSession)
    assert own.batches("the id") == ()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lake", LAKES)
def test_compaction_merges_files_and_repeated_batches_are_still_known(lake, lake_spark, tmp_path):
    table = Table(lake, lake_spark, tmp_path, compact="every 1h")
    table.target.compact()  # there is no table yet
    batches = []
    for number in range(6):
        batches.append(table.manifest(f"{number:09d}", f"SELECT {number} AS id"))
        table.target.commit(batches[-1])

    def file_count():
        if lake == "delta":
            return lake_spark.sql(f"DESCRIBE DETAIL {table.name}").collect()[0].numFiles
        lake_spark.catalog.refreshTable(table.name)
        return lake_spark.table(f"{table.name}.files").count()

    assert file_count() == 6
    table.target.compact()
    assert file_count() == 1
    for each in batches:
        table.target.commit(each)
    table.target.commit(table.manifest("000000006", "SELECT 6 AS id"))
    assert table.rows() == [(number,) for number in range(7)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lake", LAKES)
def test_an_existing_table_gives_the_columns_and_is_filled(lake, lake_spark, tmp_path):
    table = Table(lake, lake_spark, tmp_path)
    if lake == "iceberg":
        lake_spark.sql(f"CREATE NAMESPACE {table.name.rpartition('.')[0]}")
    layout = "PARTITIONED BY (date)" if lake == "delta" else "PARTITIONED BY (days(at))"
    lake_spark.sql(
        f"CREATE TABLE {table.name} (Id INT, at TIMESTAMP, date DATE, price DOUBLE) USING {lake} {layout}"
    )
    assert table.target.known_columns().names == ["Id", "at", "date", "price"]
    table.target.check(table.target.known_columns())
    grown = schema("Id INT, note STRING")
    assert [each.rpartition(" gets ")[2] for each in table.target.needed_changes(grown)] == [
        "a column note STRING"
    ]
    table.target.commit(table.manifest("000000000", "SELECT 1 AS id, CURRENT_TIMESTAMP AS at"))
    assert table.rows("id, price") == [(1, None)]
    if lake == "iceberg":
        with pytest.raises(OptionError, match=r"partitioned by days\(at\), not by date"):
            table.open(**{"partition-by": "date(arrived)"}).check(table.target.known_columns())
    else:
        by_date = table.open(**{"partition-by": "date(arrived)"})
        assert by_date.known_columns().names == ["Id", "at", "price"]
        by_date.check(by_date.known_columns())


@pytest.mark.timeout(900)
def test_a_delta_table_computes_its_generated_and_identity_columns(lake_spark, tmp_path):
    table = Table("delta", lake_spark, tmp_path)
    lake_spark.sql(
        f"CREATE TABLE {table.name} (key BIGINT GENERATED ALWAYS AS IDENTITY, id BIGINT, at TIMESTAMP, "
        "day DATE GENERATED ALWAYS AS (CAST(at AS DATE)), twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta PARTITIONED BY (day)"
    )
    assert table.target.known_columns().names == ["id", "at"]
    assert table.target.unreadable_columns() == dict.fromkeys(("key", "day", "twice"), "generated")
    table.target.check(table.target.known_columns())
    with pytest.raises(OptionError, match="computes its column twice itself: leave it out of the schema"):
        table.target.check(schema("id BIGINT, twice BIGINT"))
    table.target.commit(table.manifest("000000000", "SELECT 1L AS id, TIMESTAMP '2026-11-01 23:30:00' AS at"))
    table.target.commit(table.manifest("000000001", "SELECT 2L AS id"))
    assert table.rows("id, string(day), twice") == [(1, "2026-11-01", 2), (2, None, 4)]


def test_a_delta_table_whose_creation_was_killed_is_filled(lake_spark, tmp_path):
    log = tmp_path / "orders" / "_delta_log"
    log.mkdir(parents=True)
    (tmp_path / "orders" / "part-00000-a.snappy.parquet").touch()
    (log / ".00000000000000000000.json.a.tmp").touch()
    table = Table("delta", lake_spark, tmp_path)
    table.target.check(schema("id BIGINT"))
    table.target.commit(table.manifest("000000000", "SELECT 1L AS id"))
    assert table.rows() == [(1,)]


@pytest.mark.timeout(900)
def test_a_delta_table_of_the_catalog_is_filled_by_its_name(lake_spark, tmp_path):
    table = Table("delta", lake_spark, tmp_path, to="default.orders")
    batch = table.manifest("000000000", "SELECT 1 AS id")
    table.target.commit(batch)
    table.target.commit(batch)
    assert table.rows() == [(1,)]


def test_a_catalog_that_is_not_there_is_refused(lake_spark, tmp_path):
    with pytest.raises(OptionError, match="no catalog nowhere; configure it"):
        Table("iceberg", lake_spark, tmp_path, to="nowhere.sales.orders")


def orders(first, count, **more):
    return [
        json.dumps({"id": number, "price": number / 2, **more}).encode()
        for number in range(first, first + count)
    ]


@pytest.mark.timeout(900)
def test_every_record_is_a_row_or_a_dead_letter_once_whatever_step_is_killed(lake, kinesis, monkeypatch):
    layout = {"partition-by": ["date(arrived)", "id % 2 AS odd"]}
    lake.put(orders(0, 20))
    assert lake.preview(**layout).changes[0].startswith("the first batch creates")
    lake.deliver(**layout)
    bad = [b"no JSON", b'{"id": "q"}', b'{"id": 1, "a column with blanks": 2}']
    lake.put([*orders(20, 10, note="new"), *bad])
    kinesis.client("kinesis").split_shard(
        StreamName=lake.stream, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(2**125)
    )
    for killed in STEPS:
        with pytest.raises(DeliveryFailed, match=f"killed at {killed}"):
            lake.deliver(at_step=kill_at(killed), **layout)
        assert lake.ids() in (list(range(20)), list(range(30)))
    lake.put(orders(30, 5))
    lake.deliver(**layout)
    assert lake.ids() == list(range(35))
    assert lake.letters() == sorted(bad)
    assert lake.kinds()["note"] == "string"
    assert lake.sql("SELECT count(note) FROM {table}").collect()[0][0] == 10


@pytest.mark.timeout(900)
def test_ten_new_fields_and_bad_records_are_delivered_once_and_mended(lake):
    options = {
        "fetchInterval": "0ms",
        "probeInterval": "200ms",
        "maxRecordsPerTrigger": str(changing.PER_BATCH),
    }
    narrow, mended = ({"schema": each, "options": options} for each in (changing.NARROW, changing.MENDED))
    lines, steps = changing.orders(), iter(changing.KILLS)
    for first in range(0, len(lines), 3 * changing.PER_VERSION):
        lake.put(lines[first : first + 3 * changing.PER_VERSION])
        step = next(steps, None)
        if step is not None:
            with pytest.raises(DeliveryFailed, match=f"killed at {step}"):
                lake.deliver(kill_at(step), **narrow)
    lake.deliver(**narrow)
    assert lake.ids() == changing.small_ids()
    large = sorted(set(changing.ids()) - set(changing.small_ids()))
    assert sorted(json.loads(each)["id"] for each in lake.letters()) == large

    if lake.lake == "delta":
        lake.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    with pytest.raises(DeliveryFailed, match="killed at end"):
        lake.deliver(kill_at("end"), redelivers=True, **mended)
    lake.deliver(redelivers=True, **mended)
    lake.deliver(**mended)
    assert lake.ids() == sorted(changing.ids())
    assert lake.letters() == []
    counts = changing.rows_by_field(changing.ids())
    found = lake.sql(f"SELECT {', '.join(f'count({name})' for name in counts)} FROM {{table}}").collect()[0]
    assert tuple(found) == tuple(counts.values())
    assert lake.kinds()["id"] == "bigint"


@pytest.mark.timeout(900)
def test_a_new_field_in_a_struct_waits_for_the_user(lake):
    given = {"schema": "id BIGINT, place STRUCT<lat: DOUBLE>"}
    late = b'{"id": 2, "place": {"lat": 1.5, "height": 8}}'
    lake.put([b'{"id": 1, "place": {"lat": 0.5}}', late])
    lake.deliver(**given)
    assert (lake.ids(), lake.letters()) == ([1], [late])
    lake.sql("ALTER TABLE {table} ADD COLUMN place.height DOUBLE")
    given["schema"] = "id BIGINT, place STRUCT<lat: DOUBLE, height: DOUBLE>"
    lake.deliver(redelivers=True, **given)
    rows = lake.sql("SELECT id, place.lat, place.height FROM {table} ORDER BY id").collect()
    assert [tuple(each) for each in rows] == [(1, 0.5, None), (2, 1.5, 8.0)]
    assert lake.letters() == []


@pytest.mark.timeout(900)
def test_a_batch_that_the_table_has_is_not_appended_again(lake, monkeypatch):
    from penstock.delivery.batch_store import BatchStore

    lake.put(orders(0, 10))
    replace = BatchStore._finish_move

    def die_after_rows(self, batch, move):
        raise DeliveryFailed("killed between the table's commit and the batch's end")

    with monkeypatch.context() as patched:
        patched.setattr(BatchStore, "_finish_move", die_after_rows)
        lake.put([b"no JSON"])
        with pytest.raises(DeliveryFailed, match="between the table's commit"):
            lake.deliver()
    assert lake.ids() == list(range(10))
    assert BatchStore._finish_move is replace
    lake.put(orders(10, 3))
    lake.deliver()
    assert lake.ids() == list(range(13))
    assert lake.letters() == [b"no JSON"]


class Other:
    """Another program that changes a table: a session with a catalog of its own, as another process has."""

    def __init__(self, spark, lake, name):
        self._spark, self._lake, self._name = spark.newSession(), lake, name
        self._spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        # VACUUM lists the files in as many tasks: 10,000.
        self._spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")

    def sql(self, text):
        if self._lake == "iceberg":
            self._spark.catalog.refreshTable(self._name)
        self._spark.sql(text.format(table=self._name))

    def compact_and_expire(self):
        """Merge the files and remove every file and every snapshot that the table does not need."""
        if self._lake == "delta":
            self.sql("OPTIMIZE {table}")
            self.sql("VACUUM {table} RETAIN 0 HOURS")
            return
        self.sql(
            "CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
        )
        self.sql(
            "CALL lake.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
        )


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lake", LAKES)
def test_a_running_delivery_goes_on_after_maintenance_and_not_into_another_table(lake, lake_spark, tmp_path):
    table = Table(lake, lake_spark, tmp_path)
    other = Other(lake_spark, lake, table.name)
    for number in range(3):
        batch = table.manifest(f"{number:09d}", f"SELECT {number} AS id")
        table.target.commit(batch)
        table.target.commit(batch)
        other.compact_and_expire()
    assert table.rows() == [(0,), (1,), (2,)]
    later = table.manifest("000000003", "SELECT 3 AS id")
    shutil.rmtree(tmp_path / "orders") if lake == "delta" else other.sql("DROP TABLE {table} PURGE")
    with pytest.raises(DeliveryFailed, match=r"batch 000000003 of delivery orders: .* has gone"):
        table.target.commit(later)
    other._spark.sql(f"CREATE TABLE {table.name} (id INT) USING {lake}")
    with pytest.raises(
        DeliveryFailed, match=r"batch 000000003 of delivery orders: .* was created again"
    ) as error:
        table.target.commit(later)
    other.sql(str(error.value).rpartition("after ")[2])
    if lake == "iceberg":  # the new table cannot show whether it has the batch
        with pytest.raises(DeliveryFailed, match="have expired"):
            table.target.commit(later)
        later = table.manifest("000000003", "SELECT 3 AS id")
    table.target.commit(later)
    table.target.commit(later)
    assert table.rows() == [(3,)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("lake", LAKES)
def test_a_batch_of_two_drivers_at_once_is_there_once_or_named(lake, lake_spark, tmp_path, monkeypatch):
    table = Table(lake, lake_spark, tmp_path)
    table.target.commit(table.manifest("000000000", "SELECT 0 AS id"))
    batch = table.manifest("000000001", "SELECT 1 AS id")
    second, own = table.open(), table.target._table
    last = "state" if lake == "iceberg" else "schema"  # the last look at the table before the append
    look = getattr(own, last)

    def look_and_pause():
        found = look()
        second.commit(batch)
        return found

    monkeypatch.setattr(own, last, look_and_pause)
    if lake == "iceberg":
        with pytest.raises(DeliveryFailed, match="has delivered batch 000000001 too") as error:
            table.target.commit(batch)
        assert table.rows() == [(0,), (1,), (1,)]
        Other(lake_spark, lake, table.name).sql(str(error.value).rpartition("snapshot with ")[2])
    else:
        table.target.commit(batch)
    assert table.rows() == [(0,), (1,)]


@pytest.mark.timeout(900)
def test_a_table_that_others_change_between_batches_has_each_record_once(lake, lake_spark):
    given = {"schema": "id INT, price DOUBLE", "name": "hourly"}  # Spark hides properties named after `url`
    other = Other(lake_spark, lake.lake, lake.table)
    lake.put(orders(0, 5))
    lake.deliver(**given)
    other.sql("ALTER TABLE {table} ADD COLUMNS (hand STRING)")
    if lake.lake == "delta":
        other.sql("ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    other.sql("ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT")
    lake.put(orders(5, 5, hand="new"))
    with pytest.raises(DeliveryFailed, match="killed at commit"):
        lake.deliver(kill_at("commit"), **given)
    other.sql("DELETE FROM {table} WHERE id = 3")
    other.compact_and_expire()
    lake.deliver(**given)
    left = [number for number in range(10) if number != 3]
    assert lake.ids() == left
    assert lake.sql("SELECT count(hand) FROM {table}").collect()[0][0] == 5
    lake.put(orders(10, 5))
    with pytest.raises(DeliveryFailed, match="killed at end"):
        lake.deliver(kill_at("end"), **given)
    other.compact_and_expire()
    lake.deliver(**given)
    assert lake.ids() == [*left, *range(10, 15)]
    assert lake.letters() == []


@pytest.mark.timeout(900)
def test_a_table_a_state_or_a_checkpoint_location_of_another_day_is_refused(lake, lake_spark, tmp_path):
    other = Other(lake_spark, lake.lake, lake.table)
    state, copy = lake.state / lake.stream, tmp_path / "copy"
    checkpoint = state / "checkpoint"
    for number in range(3):
        lake.put(orders(5 * number, 5))
        lake.deliver()
        if number == 0:
            shutil.copytree(state, copy)
    lake.put(orders(15, 5))
    newest = state.rename(tmp_path / "newest state")
    shutil.copytree(copy, state)
    with pytest.raises(DeliveryFailed, match=r"has batch \d+ of delivery .*, and .* does not have it"):
        lake.deliver()
    shutil.rmtree(state)
    newest.rename(state)
    newest = checkpoint.rename(tmp_path / "newest")
    with pytest.raises(DeliveryFailed, match=r"checkpoint .* has gone: restore it"):
        lake.deliver()
    shutil.copytree(copy / "checkpoint", checkpoint)
    with pytest.raises(DeliveryFailed, match=r"ends with batch \d+, and .* has batch \d+ of delivery"):
        lake.deliver()
    shutil.rmtree(checkpoint)
    newest.rename(checkpoint)
    assert lake.ids() == list(range(15))
    lake.deliver()
    assert lake.ids() == list(range(20))
    if lake.lake == "delta":
        renamed = Path(lake.to).rename(tmp_path / "renamed")
        with pytest.raises(DeliveryFailed, match="has gone"):
            lake.deliver()
        renamed.rename(lake.to)
        lake.deliver()
        shutil.rmtree(lake.to)
    else:
        other.sql("DROP TABLE {table} PURGE")
        with pytest.raises(DeliveryFailed, match="has gone"):
            lake.deliver()
    other._spark.sql(f"CREATE TABLE {lake.table} (id BIGINT, price DOUBLE) USING {lake.lake}")
    lake.put(orders(20, 5))
    with pytest.raises(DeliveryFailed, match="was created again") as error:
        lake.deliver()
    other.sql(str(error.value).rpartition("after ")[2])
    lake.deliver()
    assert lake.ids() == list(range(20, 25))
