"""Operations on records: put one or many, take an iterator, read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock_local import growth, request_model, sequence
from penstock_local.operations.call import Document, ServiceCall
from penstock_local.operations.positions import ITERATOR_NAMES, is_of_shard, position_of, shard_by_index
from penstock_local.quotas import MIB
from penstock_local.sequence import ORDINAL_STEP
from penstock_local.service_errors import THROUGHPUT_EXCEEDED, RequestRefused, invalid_argument, not_found
from penstock_local.shard import Shard
from penstock_local.store import ACCOUNT, hash_key_of
from penstock_local.stream import HASH_KEY_MAX, Stream
from penstock_local.tokens import IteratorState
from penstock_local.wire import Entry, EntryResult, arrival_text, record_text

REQUEST_BYTES_MAX = 10 * MIB
ANSWER_BYTES_MAX = 10 * MIB
ANSWER_RECORDS_MAX = 10_000


# -- put ----------------------------------------------------------------------------------------------------


class _ScriptedFailure(NamedTuple):
    """The result of an entry that a fault fails, and whether it is stored all the same."""

    result: EntryResult
    is_stored: bool


class _ShardBatch:
    """The records of one call that go to one shard."""

    __slots__ = ("encrypted", "first_number", "shard", "sizes", "texts")

    def __init__(self, stream: Stream, shard: Shard, arrival_ms: int) -> None:
        self.encrypted = stream.settings.key_id is not None
        self.shard = shard
        self.first_number = shard.next_number(arrival_ms)
        self.texts: list[bytes] = []
        self.sizes: list[int] = []

    def add(self, entry: Entry, size_bytes: int, arrival: bytes) -> str:
        """Add a record; returns its sequence number."""
        number = str(self.first_number + len(self.texts) * ORDINAL_STEP)
        data_json = entry.data_json or b'""'
        self.texts.append(
            record_text(number, arrival, data_json, entry.partition_key, encrypted=self.encrypted)
        )
        self.sizes.append(size_bytes)
        return number


def PutRecord(call: ServiceCall, request: Document) -> Document:
    """Store one record."""
    entry = call.wire.entry(request)
    _check_entries([entry], "", call, request)
    stream = call.readable_stream(request)
    size_bytes = _check_sizes(stream, [entry])[0]
    shard = _shard_of(stream, entry)
    ordering = request.get("SequenceNumberForOrdering")
    if ordering is not None:
        _check_ordering(stream, ordering)
    call.admit(stream, (shard.id,))
    call.end_dry_run(request)
    quotas = call.service.quotas
    if quotas.enforced and not quotas.shard(stream.uid, shard.index).try_write(size_bytes, call.now_ms):
        raise call.rate_refusal()
    batch = _ShardBatch(stream, shard, call.now_ms)
    number = batch.add(entry, size_bytes, arrival_text(call.now_ms))
    _store_batches(call, stream, [batch])
    return {"ShardId": shard.id, "SequenceNumber": number, **_encryption_member(stream)}


def PutRecords(call: ServiceCall, body: bytes) -> bytes:
    """Store many records; each is accepted or refused for itself."""
    fields, entries = call.wire.decode_put_records(body)
    request = request_model.check_request(
        "PutRecords", fields, members_apart=() if entries is None else ("Records",)
    )
    entries = entries or []  # the model has refused a request without them
    problems: list[str] = []
    request_model.check_count("PutRecordsRequestEntryList", entries, "records", problems)
    request_model.refuse_if(problems)
    _check_entries(entries, "records.{}.member.", call, request)
    stream = call.readable_stream(request)
    sizes = _check_sizes(stream, entries)
    if sum(sizes) > REQUEST_BYTES_MAX:
        raise invalid_argument(
            f"Records size exceeds 10 MB limit: {sum(sizes)} bytes of data and partition keys, at most {REQUEST_BYTES_MAX}"
        )
    shards = [_shard_of(stream, entry) for entry in entries]
    call.admit(stream, sorted({shard.id for shard in shards}))
    call.end_dry_run(request)
    results, failed = _put_all(call, stream, entries, sizes, shards)
    return call.wire.put_records_answer(results, failed, _encryption_member(stream))


def _put_all(
    call: ServiceCall, stream: Stream, entries: list[Entry], sizes: list[int], shards: list[Shard]
) -> tuple[list[EntryResult], int]:
    """Store the entries that neither a fault nor a shard's rate refuses; return the results in order, and how many failed."""
    now_ms = call.now_ms
    arrival = arrival_text(now_ms)
    scripted = _scripted_failures(call, stream, shards)
    quotas = call.service.quotas
    batches: dict[int, _ShardBatch] = {}
    results: list[EntryResult] = []
    throttled = [shards[i].id for i, each in scripted.items() if each.result.code == THROUGHPUT_EXCEEDED]
    failed = 0
    for i, (entry, size_bytes, shard) in enumerate(zip(entries, sizes, shards, strict=True)):
        failure = scripted.get(i)
        if failure is not None and not failure.is_stored:
            failed += 1
            results.append(failure.result)
            continue
        if quotas.enforced and not quotas.shard(stream.uid, shard.index).try_write(size_bytes, now_ms):
            failed += 1
            throttled.append(shard.id)
            results.append(_throttled_entry(stream, shard))
            continue
        batch = batches.get(shard.index)
        if batch is None:
            batch = batches[shard.index] = _ShardBatch(stream, shard, now_ms)
        number = batch.add(entry, size_bytes, arrival)
        if failure is not None:
            failed += 1
            results.append(failure.result)
        else:
            results.append(EntryResult(shard.id, number))
    _store_batches(call, stream, batches.values())
    call.service.metrics.add_refused(stream, "WriteProvisionedThroughputExceeded", throttled, now_ms)
    return results, failed


def _store_batches(call: ServiceCall, stream: Stream, batches: Iterable[_ShardBatch]) -> None:
    added = [(batch.shard, batch.texts, batch.sizes) for batch in batches]
    call.service.store.add_records(stream, added, call.now_ms)
    call.service.metrics.add_writes(stream, added, call.now_ms)
    if stream.mode == "ON_DEMAND" and call.service.store.options.on_demand_growth:
        growth.grow(call.service.store, stream, added, call.now_ms)


def _encryption_member(stream: Stream) -> Document:
    return {} if stream.settings.key_id is None else {"EncryptionType": "KMS"}


def _throttled_entry(stream: Stream, shard: Shard) -> EntryResult:
    message = f"Rate exceeded for shard {shard.id} in stream {stream.name} under account {ACCOUNT}."
    return EntryResult("", "", THROUGHPUT_EXCEEDED, message)


def _scripted_failures(
    call: ServiceCall, stream: Stream, shards: Sequence[Shard]
) -> dict[int, _ScriptedFailure]:
    """Return the failures of the entries that a fault fails, by their place."""
    found: dict[int, _ScriptedFailure] = {}
    for hit in call.answering_hits:
        fault = hit.fault
        candidates = [i for i, shard in enumerate(shards) if fault.shard is None or shard.id == fault.shard]
        if fault.kind == "throttle":
            chosen = candidates
        elif fault.kind == "partial":
            chosen = hit.choose_fraction(candidates)
        else:
            continue
        for i in chosen:
            result = _throttled_entry(stream, shards[i])
            if fault.code is not None or fault.message is not None:
                result = result._replace(
                    code=fault.code or result.code, message=fault.message or "Internal service failure."
                )
            found[i] = _ScriptedFailure(result, fault.applied)
    return found


def _check_entries(entries: Sequence[Entry], path: str, call: ServiceCall, request: Document) -> None:
    """Check each entry by the model; a violation is worded as the service words it."""
    needs_keys = any(entry.partition_key is None for entry in entries) and not _is_auto(call, request)
    problems: list[str] = []
    # most entries are valid: only the messages for the others come from the model
    hash_key = re.compile(request_model.shape("HashKey").pattern or "", re.ASCII)
    data_bytes_max, key_chars_max = (request_model.shape(n).max or 0 for n in ("Data", "PartitionKey"))
    for i, (data, size, key, explicit) in enumerate(entries, 1):
        where = path.format(i)
        if data is None:
            problems.append(request_model.violation(None, f"{where}data", "Member must not be null"))
        elif size > data_bytes_max:
            problems.append(
                request_model.violation(
                    f"java.nio.HeapByteBuffer[pos=0 lim={size} cap={size}]",
                    f"{where}data",
                    f"Member must have length less than or equal to {data_bytes_max}",
                )
            )
        if key is None:
            if needs_keys:
                problems.append(
                    request_model.violation(None, f"{where}partitionKey", "Member must not be null")
                )
        elif not 1 <= len(key) <= key_chars_max:
            request_model.check("PartitionKey", key, f"{where}partitionKey", problems)
        if explicit is not None and not hash_key.fullmatch(explicit):
            request_model.check("HashKey", explicit, f"{where}explicitHashKey", problems)
    request_model.refuse_if(problems)


def _is_auto(call: ServiceCall, request: Document) -> bool:
    """Return whether the stream of a request is there and takes records without keys."""
    try:
        return call.stream(request).settings.is_auto
    except RequestRefused:
        return False


def _check_sizes(stream: Stream, entries: Sequence[Entry]) -> list[int]:
    """Return the bytes that each record counts for; refuse those over the stream's record size."""
    limit = stream.record_kib_max * 1024
    sizes = [entry.size_bytes + len((entry.partition_key or "").encode()) for entry in entries]
    for i, size in enumerate(sizes):
        if size > limit:
            raise invalid_argument(
                f"Record {i + 1} of {len(sizes)} has {size} bytes of data and partition key; stream {stream.name} "
                f"takes at most {limit} (MaxRecordSizeInKiB={stream.record_kib_max})."
            )
    return sizes


def _shard_of(stream: Stream, entry: Entry) -> Shard:
    return stream.shard_in_turn() if stream.settings.is_auto else stream.shard_for(_hash_key(entry))


def _hash_key(entry: Entry) -> int:
    if entry.explicit_hash_key is None:
        return hash_key_of(entry.partition_key or "")
    key = int(entry.explicit_hash_key)
    if key > HASH_KEY_MAX:
        raise invalid_argument(
            "Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. "
            f"Specified value was {entry.explicit_hash_key}"
        )
    return key


def _check_ordering(stream: Stream, text: str) -> None:
    """Refuse a SequenceNumberForOrdering that this stream has not assigned. An assigned one is always lower than the next record's."""
    parts = sequence.decode(int(text))
    shard = None if parts is None else shard_by_index(stream, parts.shard_index)
    if (
        parts is None
        or shard is None
        or not is_of_shard(parts, shard)
        or not 0 < parts.ordinal < shard.next_ordinal
    ):
        raise invalid_argument(
            f"ExclusiveMinimumSequenceNumber {text} used in PutRecord on stream {stream.name} "
            f"under account {ACCOUNT} is invalid."
        )


# -- read ---------------------------------------------------------------------------------------------------


def GetShardIterator(call: ServiceCall, request: Document) -> Document:
    """Return an iterator at a position of a shard."""
    stream = call.readable_stream(request)
    shard = stream.shard(request["ShardId"])
    ordinal = position_of(call, stream, shard, request, ITERATOR_NAMES)
    call.admit(stream, (shard.id,))
    call.end_dry_run(request)
    quotas = call.service.quotas
    if quotas.enforced and not quotas.shard(stream.uid, shard.index).iterator_calls.try_call(call.now_ms):
        raise call.rate_refusal()
    state = IteratorState(stream.uid, shard.index, ordinal)
    return {"ShardIterator": call.service.tokens.iterator(state, call.now_ms)}


def GetRecords(call: ServiceCall, request: Document) -> bytes:
    """Read from an iterator on."""
    now_ms = call.now_ms
    tokens, store, quotas = call.service.tokens, call.service.store, call.service.quotas
    state = tokens.read_iterator(request["ShardIterator"], now_ms)
    stream = store.by_uid.get(state.stream_uid)
    if stream is not None:
        store.settle(stream, now_ms)
    shard = None if stream is None else shard_by_index(stream, state.shard_index)
    if stream is not None and stream.region != call.region:
        raise invalid_argument("Invalid ShardIterator.")
    if stream is None or shard is None or state.stream_uid not in store.by_uid:
        raise not_found(
            f"The stream or shard of this iterator under account {ACCOUNT} does not exist any more."
        )
    if request.get("StreamARN", stream.arn) != stream.arn:
        raise invalid_argument("ShardIterator is of another stream than StreamARN.")
    call.admit(stream, (shard.id,))
    call.end_dry_run(request)
    quota = quotas.shard(stream.uid, shard.index) if quotas.enforced else None
    if quota is not None and not (quota.read_bytes.may_read(now_ms) and quota.read_calls.try_call(now_ms)):
        raise call.rate_refusal()
    store.trim(stream, shard, now_ms)
    limit = 0 if call.find_hit("empty") else request.get("Limit", ANSWER_RECORDS_MAX)
    following, texts, size_bytes = shard.read(state.ordinal, limit, ANSWER_BYTES_MAX)
    if quota is not None:
        quota.read_bytes.take(size_bytes, now_ms)
    call.service.metrics.add_read(stream, shard.id, len(texts), size_bytes, now_ms)
    return call.wire.get_records_answer(texts, _rest_of_answer(call, stream, shard, following))


def _rest_of_answer(call: ServiceCall, stream: Stream, shard: Shard, ordinal: int) -> Document:
    """Return the rest of a GetRecords answer: lag, next iterator, and the children at the end of the shard."""
    behind_ms = shard.behind_ms(ordinal, call.now_ms)
    if shard.closed_ms is not None and not behind_ms:
        return {
            "NextShardIterator": None,
            "MillisBehindLatest": behind_ms,
            "ChildShards": stream.describe_children(shard),
        }
    state = IteratorState(stream.uid, shard.index, ordinal)
    return {
        "NextShardIterator": call.service.tokens.iterator(state, call.now_ms),
        "MillisBehindLatest": behind_ms,
    }
