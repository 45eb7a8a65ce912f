import hashlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core import aggregation
from penstock.core.aggregation import (
    MAGIC,
    MARK,
    OVERHEAD_BYTES,
    AggregateBuilder,
    DecodeCounts,
    MisplacedRule,
    Undecodable,
    UserRecord,
    deaggregate,
    deaggregate_record,
    user_records,
)
from penstock.core.hash_key import FULL_RANGE, HASH_KEY_MAX, HashRange, effective_hash_key, hash_partition_key
from penstock.core.put_entry import PutEntry
from penstock.errors import RecordError

GOLDEN = Path(__file__).parents[1] / "golden"
KPL = json.loads((GOLDEN / "kpl.json").read_text())
PEER = json.loads((GOLDEN / "aggregates.json").read_text())


def decode(blob):
    """Return the records of an aggregate, or the reason why it is not one."""
    found = aggregation.decode(blob)
    return found.columns.to_records() if isinstance(found, aggregation.Aggregate) else found


def pack(*records, is_marked=False):
    builder = AggregateBuilder(is_marked=is_marked)
    for partition_key, explicit_hash_key, data in records:
        builder.add(data, partition_key, explicit_hash_key)
    return builder.build()


def seal(body):
    """Make a blob of hand-written protobuf bytes."""
    return MAGIC + body + hashlib.md5(body).digest()


# --- reading: the vectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", KPL["vectors"], ids=lambda vector: vector["name"])
def test_a_vector_is_read_as_the_reference_reader_does(vector):
    expected = [
        UserRecord(
            record["partition_key"],
            record["explicit_hash_key"],
            bytes.fromhex(record["data_hex"]),
            record["sub_sequence_number"],
        )
        for record in vector["expected_user_records"]
    ]
    found = decode(bytes.fromhex(vector["hex"]))
    assert found == expected
    assert [str(effective_hash_key(record.partition_key, record.explicit_hash_key)) for record in found] == [
        record["effective_hash_key"] for record in vector["expected_user_records"]
    ]


@pytest.mark.parametrize("vector", KPL["vectors"], ids=lambda vector: vector["name"])
def test_a_vector_is_written_byte_for_byte_and_placed_as_the_reference_producer_does(vector):
    records = [
        (record["partition_key"], record["explicit_hash_key"], bytes.fromhex(record["data_hex"]))
        for record in vector["expected_user_records"]
    ]
    assert pack(*records) == PutEntry(
        bytes.fromhex(vector["hex"]),
        vector["kpl_outer_partition_key"],
        vector["kpl_outer_explicit_hash_key"],
    )


V1 = decode(bytes.fromhex(KPL["vectors"][0]["hex"]))
EDGE_ANSWERS = {
    "e01_magic_only": Undecodable.TOO_SHORT,
    "e02_magic_plus_16_bytes": Undecodable.TOO_SHORT,
    "e03_shorter_than_magic": None,
    "e04_bad_md5": Undecodable.DIGEST,
    "e05_truncated_tail": Undecodable.DIGEST,
    "e06_magic_collision_plain_text": Undecodable.DIGEST,
    "e07_valid_md5_invalid_protobuf": Undecodable.PROTOBUF,
    "e08_zero_records": Undecodable.EMPTY,
    "e09_pk_index_out_of_range_second_record": Undecodable.INDEX,
    "e10_nested_aggregate": [
        UserRecord("outer", None, bytes.fromhex(KPL["vectors"][0]["hex"]), 0),
        UserRecord("outer", None, b"plain", 1),
    ],
    "e11_tags_present": [UserRecord("pk", None, b"tagged", 0)],
    "e12_unknown_field": V1,
    "e13_records_before_table": V1,
    "e14_missing_required_data": Undecodable.PROTOBUF,
}


@pytest.mark.parametrize("case", KPL["edge_cases"], ids=lambda case: case["name"])
def test_an_edge_case_gets_its_answer(case):
    blob = bytes.fromhex(case["hex"])
    expected = EDGE_ANSWERS[case["name"]]
    found = decode(blob)
    if isinstance(expected, list):
        assert [record[2:] for record in found] == [record[2:] for record in expected]
        assert deaggregate(blob) == found
    else:
        assert found is expected
        assert deaggregate(blob) is None


def test_every_edge_case_has_an_answer():
    assert {case["name"] for case in KPL["edge_cases"]} == set(EDGE_ANSWERS)


@pytest.mark.parametrize("case", PEER["cases"], ids=lambda case: case["name"])
def test_bytes_shared_with_the_peer_stay_as_they_are(case):
    records = [(key, hash_key, bytes.fromhex(data)) for key, hash_key, data in case["records"]]
    packed = pack(*records)
    assert packed.data.hex() == case["blob"]
    assert (packed.partition_key, packed.explicit_hash_key) == (
        case["partition_key"],
        case["explicit_hash_key"],
    )
    assert decode(bytes.fromhex(case["blob"])) == [
        UserRecord(key, hash_key, data, place) for place, (key, hash_key, data) in enumerate(records)
    ]


# --- reading: what is not a whole aggregate ------------------------------------------------------------------

BROKEN = {
    "an explicit hash key index where there is no table": (
        seal(b"\x0a\x01k" + b"\x1a\x07\x08\x00\x10\x00\x1a\x01x"),
        Undecodable.INDEX,
    ),
    "an explicit hash key index beyond the table": (
        seal(b"\x0a\x01k" + b"\x12\x010" + b"\x1a\x07\x08\x00\x10\x01\x1a\x01x"),
        Undecodable.INDEX,
    ),
    "a key so long that rows of it fill the memory": (
        seal(b"\x0a\x80\x80\x20" + b"k" * 524_288 + b"\x1a\x04\x08\x00\x1a\x00" * 129),
        Undecodable.KEYS,
    ),
    "a key index of 2^64-1": (
        seal(b"\x0a\x01k" + b"\x1a\x0e\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x01x"),
        Undecodable.INDEX,
    ),
    "a partition key that is not UTF-8": (
        seal(b"\x0a\x02\xff\xfe" + b"\x1a\x05\x08\x00\x1a\x01x"),
        Undecodable.PROTOBUF,
    ),
    "an explicit hash key that is not UTF-8": (
        seal(b"\x0a\x01k" + b"\x12\x02\xff\xfe" + b"\x1a\x07\x08\x00\x10\x00\x1a\x01x"),
        Undecodable.PROTOBUF,
    ),
    "a record without a partition key index": (
        seal(b"\x0a\x01k" + b"\x1a\x03\x1a\x01x"),
        Undecodable.PROTOBUF,
    ),
    "a tag without its key": (
        seal(b"\x0a\x01k" + b"\x1a\x0a\x08\x00\x1a\x01x\x22\x03\x12\x01v"),
        Undecodable.PROTOBUF,
    ),
    "a digest and nothing else": (MAGIC + hashlib.md5(b"").digest(), Undecodable.TOO_SHORT),
}


@pytest.mark.parametrize(("blob", "reason"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_whole_aggregate_passes_through_untouched_and_is_counted(blob, reason):
    counts = DecodeCounts()
    assert user_records(blob, "outer", counts) == [UserRecord("outer", None, blob, 0)]
    assert counts == DecodeCounts(undecodable={reason: 1})


@pytest.mark.parametrize("place", range(len(KPL["vectors"][1]["hex"]) // 2))
def test_an_aggregate_with_one_wrong_byte_loses_nothing(place):
    blob = bytearray.fromhex(KPL["vectors"][1]["hex"])
    blob[place] ^= 0x20
    counts = DecodeCounts()
    assert user_records(bytes(blob), "outer", counts) == [UserRecord("outer", None, bytes(blob), 0)]
    assert counts == (DecodeCounts() if place < 4 else DecodeCounts(undecodable={Undecodable.DIGEST: 1}))


@given(st.binary(max_size=60))
@example(b"")
@example(MAGIC)
@example(b"\x0a\x01k\x1a\x05\x08\x00\x1a\x01x")
def test_no_bytes_make_the_reader_fail(body):
    for blob in (body, MAGIC + body, seal(body)):
        counts = DecodeCounts()
        records = user_records(blob, None, counts)
        assert records
        if counts.aggregates == 0:
            assert records == [UserRecord(None, None, blob, 0)]
            assert sum(counts.undecodable.values()) == (1 if blob.startswith(MAGIC) else 0)


def test_counts_add_up_over_many_records():
    counts = DecodeCounts()
    whole = pack(("k", None, b"1"), ("k", None, b"2")).data
    for blob in (b"plain", whole, whole, MAGIC, MAGIC + b"x" * 20, MAGIC + b"y" * 20):
        user_records(blob, "k", counts)
    assert counts == DecodeCounts(
        aggregates=2,
        undecodable={Undecodable.TOO_SHORT: 1, Undecodable.DIGEST: 2},
    )


# --- reading: aggregates in the wrong shard ---------------------------------------------------------------

HALF = HASH_KEY_MAX // 2


class Shard:
    """A shard that owns a range, as it is known and as the service tells it when asked again."""

    def __init__(self, known, told="the same"):
        self.known, self.told, self.asked = known, known if told == "the same" else told, []

    def __call__(self, age_max_s):
        self.asked.append("known" if age_max_s == math.inf else "again")
        return self.known if age_max_s == math.inf else self.told


ASTRIDE = (("a", "0", b"in"), ("b", str(HASH_KEY_MAX), b"out"), ("c", str(HALF), b"edge"))
LOWER = HashRange(0, HALF)


def test_a_marked_aggregate_with_one_record_outside_the_shard_is_dropped_whole_and_counted():
    counts = DecodeCounts()
    rule = MisplacedRule(Shard(LOWER))
    blob = pack(*ASTRIDE, is_marked=True).data
    assert user_records(blob, "a", counts, rule) == []
    assert counts == DecodeCounts(aggregates=1, misplaced_aggregates=1, misplaced_records=3)
    taken = deaggregate_record(blob, "a", counts, rule)
    assert (taken.is_misplaced, [record.sub_sequence_number for record in taken.columns.to_records()]) == (
        True,
        [0, 1, 2],
    )


@pytest.mark.parametrize(
    ("records", "is_marked", "drops_unmarked", "known", "told", "is_dropped"),
    [
        pytest.param(ASTRIDE, True, False, None, None, False, id="nothing is known of the shard"),
        pytest.param(ASTRIDE, True, False, LOWER, None, False, id="the service no longer has the shard"),
        pytest.param(ASTRIDE, True, False, LOWER, FULL_RANGE, False, id="the known range was an old one"),
        pytest.param(ASTRIDE, True, False, LOWER, LOWER, True, id="ours"),
        pytest.param(ASTRIDE, False, False, LOWER, LOWER, False, id="another producer's"),
        pytest.param(
            ASTRIDE, False, True, LOWER, LOWER, True, id="another producer's by the rule of the KCL"
        ),
        pytest.param(ASTRIDE, True, True, FULL_RANGE, FULL_RANGE, False, id="one shard owns everything"),
        pytest.param(ASTRIDE[::2], True, True, LOWER, LOWER, False, id="every record inside, the edge too"),
    ],
)
def test_a_misplaced_aggregate_is_dropped_when_its_rule_says_so(
    records, is_marked, drops_unmarked, known, told, is_dropped
):
    rule = MisplacedRule(Shard(known, told), drops_unmarked)
    counts = DecodeCounts()
    kept = user_records(pack(*records, is_marked=is_marked).data, "a", counts, rule)
    assert [record.data for record in kept] == ([] if is_dropped else [data for _, _, data in records])
    assert counts.misplaced_records == len(records) - len(kept)


@pytest.mark.parametrize(
    ("known_range", "listed", "is_dropped", "asked"),
    [
        pytest.param(LOWER, None, True, ["again"], id="the listing lags behind a reshard"),
        pytest.param(LOWER, FULL_RANGE, False, ["again"], id="the stream was made again with other shards"),
        pytest.param(FULL_RANGE, LOWER, False, [], id="nothing is out of place"),
    ],
)
def test_a_known_range_saves_asking_and_counts_where_the_listing_is_silent(
    known_range, listed, is_dropped, asked
):
    shard = Shard(listed)
    rule = MisplacedRule(shard, known_range=known_range)
    taken = deaggregate_record(pack(*ASTRIDE, is_marked=True).data, "a", DecodeCounts(), rule)
    assert (taken.is_misplaced, shard.asked) == (is_dropped, asked)


def test_the_partition_key_places_a_record_that_has_no_explicit_hash_key():
    inside = hash_partition_key("k")
    rule = MisplacedRule(Shard(HashRange(inside, inside)))
    at_home = pack(("k", None, b"1"), ("k", None, b"2"), is_marked=True).data
    misrouted = pack(("k", None, b"1"), ("other", None, b"2"), is_marked=True).data
    placed = pack(("k", None, b"1"), ("other", str(inside), b"2"), is_marked=True).data
    assert [
        deaggregate_record(blob, "a", DecodeCounts(), rule).is_misplaced
        for blob in (at_home, misrouted, placed)
    ] == [
        False,
        True,
        False,
    ]


def test_a_shard_is_asked_for_only_when_an_aggregate_may_have_to_be_dropped():
    shard = Shard(LOWER)
    rule = MisplacedRule(shard)
    for blob in (b"plain", pack(*ASTRIDE).data, MAGIC + b"broken, and longer than a digest"):
        user_records(blob, "a", DecodeCounts(), rule)
    assert shard.asked == []
    user_records(pack(*ASTRIDE[::2], is_marked=True).data, "a", DecodeCounts(), rule)
    assert shard.asked == ["known"]
    user_records(pack(*ASTRIDE, is_marked=True).data, "a", DecodeCounts(), rule)
    assert shard.asked == ["known", "known", "again"]


def test_a_plain_record_is_never_misplaced():
    rule = MisplacedRule(Shard(HashRange(0, 0)), drops_unmarked=True)
    alone = pack(("k", None, b"plain"), is_marked=True)
    assert alone == PutEntry(b"plain", "k", None)
    assert user_records(alone.data, "k", DecodeCounts(), rule) == [UserRecord("k", None, b"plain", 0)]


def test_a_record_whose_hash_key_is_not_one_does_not_make_its_aggregate_misplaced():
    inside = hash_partition_key("k")
    table = b"\x0a\x01k" + b"\x12\x03abc"
    blob = seal(table + b"\x1a\x07\x08\x00\x10\x00\x1a\x01x" + b"\x1a\x05\x08\x00\x1a\x01y")
    rule = MisplacedRule(Shard(HashRange(inside, inside)), drops_unmarked=True)
    assert [record.data for record in user_records(blob, "a", DecodeCounts(), rule)] == [b"x", b"y"]


@pytest.mark.parametrize("value", [b"\x00", b"\x01"], ids=["false", "true"])
def test_the_mark_counts_wherever_another_writer_puts_it_and_only_when_it_is_true(value):
    body = pack(*ASTRIDE).data[len(MAGIC) : -aggregation.DIGEST_BYTES]
    rule = MisplacedRule(Shard(LOWER))
    taken = deaggregate_record(seal(MARK[:2] + value + body), "a", DecodeCounts(), rule)
    assert taken.is_misplaced == (value == b"\x01")


def test_data_that_ends_like_the_mark_is_no_mark():
    records = (*ASTRIDE[:2], ("c", "1", MARK))
    taken = deaggregate_record(pack(*records).data, "a", DecodeCounts(), MisplacedRule(Shard(LOWER)))
    assert not taken.is_misplaced


def test_an_aggregate_inside_a_misplaced_one_shares_its_fate_and_inside_another_stays_data():
    inner = pack(*ASTRIDE, is_marked=True).data
    rule = MisplacedRule(Shard(LOWER))
    outside, at_home = (
        pack(("k", place, inner), ("k", "0", b"y"), is_marked=True).data for place in (str(HASH_KEY_MAX), "0")
    )
    assert user_records(outside, "a", DecodeCounts(), rule) == []
    assert [record.data for record in user_records(at_home, "a", DecodeCounts(), rule)] == [inner, b"y"]


def test_a_megabyte_of_empty_records_is_judged_by_the_one_key_that_they_share():
    body = b"\x0a\x01k" + b"\x1a\x04\x08\x00\x1a\x00" * 170_000
    inside = hash_partition_key("k")
    for owned, kept in ((HashRange(inside, inside), 170_000), (HashRange(0, 0), 0)):
        counts = DecodeCounts()
        found = user_records(seal(body + MARK), "a", counts, MisplacedRule(Shard(owned)))
        assert (len(found), counts.misplaced_records) == (kept, 170_000 - kept)


# --- the mark, and those who do not know it ---------------------------------------------------------------


def kpl_schema():
    """Make the message class of the KPL's published schema, which knows no mark."""
    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", package="kpl", syntax="proto2")
    kinds = descriptor_pb2.FieldDescriptorProto
    record = file.message_type.add(name="Record")
    record.field.add(name="partition_key_index", number=1, type=kinds.TYPE_UINT64, label=kinds.LABEL_REQUIRED)
    record.field.add(name="explicit_hash_key_index", number=2, type=kinds.TYPE_UINT64, label=1)
    record.field.add(name="data", number=3, type=kinds.TYPE_BYTES, label=kinds.LABEL_REQUIRED)
    whole = file.message_type.add(name="AggregatedRecord")
    whole.field.add(name="partition_key_table", number=1, type=kinds.TYPE_STRING, label=3)
    whole.field.add(name="explicit_hash_key_table", number=2, type=kinds.TYPE_STRING, label=3)
    whole.field.add(name="records", number=3, type=kinds.TYPE_MESSAGE, label=3, type_name=".kpl.Record")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))


@pytest.mark.parametrize("vector", KPL["vectors"], ids=lambda vector: vector["name"])
def test_a_marked_aggregate_is_the_same_to_a_reader_that_knows_only_the_kpls_schema(vector):
    records = [
        (record["partition_key"], record["explicit_hash_key"], bytes.fromhex(record["data_hex"]))
        for record in vector["expected_user_records"]
    ]
    marked = pack(*records, is_marked=True).data
    body = marked[len(MAGIC) : -aggregation.DIGEST_BYTES]
    assert hashlib.md5(body).digest() == marked[-aggregation.DIGEST_BYTES :]
    schema = kpl_schema()
    found, plain = schema(), schema()
    found.ParseFromString(body)
    plain.ParseFromString(bytes.fromhex(vector["hex"])[len(MAGIC) : -aggregation.DIGEST_BYTES])
    assert found.IsInitialized()
    found.DiscardUnknownFields()
    assert found == plain
    assert decode(marked) == decode(bytes.fromhex(vector["hex"]))


# --- writing ----------------------------------------------------------------------------------------------


def test_one_record_alone_is_written_as_it_is_with_its_own_keys():
    assert pack(("mine", None, b"data")) == PutEntry(b"data", "mine", None)
    assert pack(("mine", "7", b"data")) == PutEntry(b"data", "mine", "7")


def test_several_records_are_placed_by_the_first_ones_hash_key():
    by_key = pack(("k", None, b"1"), ("other", "9", b"2"))
    assert (by_key.partition_key, by_key.explicit_hash_key) == ("a", str(hash_partition_key("k")))
    by_hash_key = pack(("k", "7", b"1"), ("other", None, b"2"))
    assert (by_hash_key.partition_key, by_hash_key.explicit_hash_key) == ("a", "7")


def test_an_aggregate_of_nothing_is_refused():
    with pytest.raises(ValueError, match="an aggregate of no records"):
        AggregateBuilder().build()


@pytest.mark.parametrize(
    ("partition_key", "explicit_hash_key", "message"),
    [
        ("k", "abc", "explicit hash key 'abc' is not a decimal number"),
        ("k", str(2**128), "is over the largest one"),
        ("\ud800", None, "is not Unicode text"),
    ],
)
def test_a_bad_key_is_refused_when_it_comes_and_the_aggregate_stays_whole(
    partition_key, explicit_hash_key, message
):
    builder = AggregateBuilder()
    builder.add(b"1", "k")
    for act in (builder.size_with, builder.add):
        with pytest.raises(RecordError, match=message):
            act(b"2", partition_key, explicit_hash_key)
    assert builder.build() == PutEntry(b"1", "k")
    builder.add(b"2", "k")
    assert [record.data for record in decode(builder.build().data)] == [b"1", b"2"]


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["a", "k" * 127, "é" * 128]
)
HASH_KEYS = st.none() | st.sampled_from(["0", str(HASH_KEY_MAX)]) | st.integers(0, HASH_KEY_MAX).map(str)
DATA = st.binary(max_size=40) | st.sampled_from(
    [b"x" * 126, b"x" * 127, b"x" * 128, b"x" * 16_383, b"x" * 16_384]
)
RECORDS = st.lists(st.tuples(KEYS, HASH_KEYS, DATA), min_size=1, max_size=12)


@given(RECORDS)
@example([(f"k{number}", str(number), b"") for number in range(300)])
@example([("k", None, b"x" * 2_097_151), ("k", None, b"x" * 2_097_152)])
def test_what_is_written_is_read_and_the_size_is_known_before(records):
    for is_marked in (False, True):
        check_written(records, is_marked)


def check_written(records, is_marked):
    builder = AggregateBuilder(is_marked=is_marked)
    for key, hash_key, data in records:
        predicted = builder.size_with(data, key, hash_key)
        builder.add(data, key, hash_key)
        packed = builder.build()
        assert len(packed.data) == predicted
    if len(records) > 1:
        expected = [
            UserRecord(key, hash_key, data, place) for place, (key, hash_key, data) in enumerate(records)
        ]
        assert decode(packed.data) == expected


@pytest.mark.parametrize("is_marked", [False, True])
@given(RECORDS.filter(lambda records: len(records) > 1))
def test_the_bytes_are_those_that_protobuf_writes(is_marked, records):
    message = aggregation._message_classes()[0]()
    message.partition_key_table.extend(dict.fromkeys(key for key, _, _ in records))
    message.explicit_hash_key_table.extend(
        dict.fromkeys(hash_key for _, hash_key, _ in records if hash_key is not None)
    )
    for key, hash_key, data in records:
        record = message.records.add(data=data)
        record.partition_key_index = list(message.partition_key_table).index(key)
        if hash_key is not None:
            record.explicit_hash_key_index = list(message.explicit_hash_key_table).index(hash_key)
    if is_marked:
        message.is_resent_when_misplaced = True
    packed = pack(*records, is_marked=is_marked)
    assert packed.data[len(MAGIC) : len(MAGIC) - OVERHEAD_BYTES] == message.SerializeToString(
        deterministic=True
    )


# --- beside other users of protobuf -----------------------------------------------------------------------


def test_the_message_classes_stay_out_of_the_pool_that_everybody_shares():
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("penstock.AggregatedRecord")


def test_the_reader_gives_the_same_answers_without_the_c_implementation():
    program = (
        "import sys, json\n"
        "from penstock.core.aggregation import decode\n"
        "from google.protobuf.internal import api_implementation\n"
        "assert api_implementation.Type() == 'python', api_implementation.Type()\n"
        "print(json.dumps([repr(decode(bytes.fromhex(blob))) for blob in json.load(sys.stdin)]))\n"
    )
    blobs = [case["hex"] for case in KPL["vectors"] + KPL["edge_cases"]] + [
        blob.hex() for blob, _ in BROKEN.values()
    ]
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        input=json.dumps(blobs),
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(answer.stdout) == [repr(aggregation.decode(bytes.fromhex(blob))) for blob in blobs]
