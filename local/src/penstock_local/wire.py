"""The two encodings of requests and answers, JSON and CBOR, over one stored form of a record.

A record is stored as the JSON object that GetRecords will send. JSON answers are joins of such texts;
CBOR answers are made from them by fixed offsets, which every text has because sequence numbers and
arrival times have fixed widths.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock_local import cbor
from penstock_local.documents import Timestamp, check_values, read_json
from penstock_local.service_errors import serialization

_NUMBER_AT = len('{"SequenceNumber":"')
_NUMBER_END = _NUMBER_AT + 56
_AFTER_NUMBER = _NUMBER_END + len('",')
_TIME_AT = _NUMBER_END + len('","ApproximateArrivalTimestamp":')
_TIME_END = _TIME_AT + len("1700000000.123")
_DATA_AT = _TIME_END + len(',"Data":"')
_KEY_GAP = len('","PartitionKey":')

# the end of an encrypted record's text; others end in the brace alone, and
# no partition key ends like this: a quote within a key follows a backslash
_ENCRYPTED = b',"EncryptionType":"KMS"}'
_TIMESTAMP_HEAD = b"\xc1"
_QUOTE = ord('"')
_QUOTED_BASE64 = b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"'


class Entry(NamedTuple):
    """One record of a request to put: its data as a JSON string of base64, and its keys."""

    data_json: bytes | None
    size_bytes: int
    partition_key: str | None
    explicit_hash_key: str | None


class EntryResult(NamedTuple):
    """Answer for one entry of PutRecords: shard and number, or code and message."""

    shard_id: str
    number: str
    code: str = ""
    message: str = ""


class QueueRecord(NamedTuple):
    """A record that a queue delivers: its stored text, and the members that belong to the delivery."""

    text: bytes
    handle: str
    first_ms: int
    receives: int


class Wire(Protocol):
    """One encoding of requests and answers."""

    content_type: str

    def decode(self, body: bytes) -> Any:
        """Read a request's document; an empty body is an empty document."""

    def decode_put_records(self, body: bytes) -> tuple[dict[str, Any], list[Entry] | None]:
        """Read a PutRecords request: its plain members, and its entries when there are any."""

    def entry(self, document: dict[str, Any]) -> Entry:
        """Read the record of a PutRecord request."""

    def encode(self, document: dict[str, Any]) -> bytes:
        """Write an answer's document."""

    def put_records_answer(self, results: Sequence[EntryResult], failed: int, rest: dict[str, Any]) -> bytes:
        """Write the answer of PutRecords: its results, and the other members."""

    def get_records_answer(self, texts: Sequence[bytes], rest: dict[str, Any]) -> bytes:
        """Write the answer of GetRecords: stored records, and the other members."""

    def queue_records_answer(self, records: Sequence[QueueRecord]) -> bytes:
        """Write the answer of ReceiveQueueRecords and of ReceiveDeadLetterQueueRecords."""


def record_text(
    number: str, arrival: bytes, data_json: bytes, partition_key: str | None, *, encrypted: bool = False
) -> bytes:
    """Return the stored form of a record; `arrival` is `arrival_text` of its time."""
    return b"".join(
        (
            b'{"SequenceNumber":"',
            number.encode(),
            b'","ApproximateArrivalTimestamp":',
            arrival,
            b',"Data":',
            data_json,
            b"" if partition_key is None else b',"PartitionKey":' + msgspec.json.encode(partition_key),
            _ENCRYPTED if encrypted else b"}",
        )
    )


def number_of(text: bytes) -> str:
    """Return the sequence number of a stored record."""
    return text[_NUMBER_AT:_NUMBER_END].decode()


def record_id(text: bytes) -> str:
    """Return the RecordId of a stored record: the same in every delivery and queue, and of its stream only."""
    number = text[_NUMBER_AT:_NUMBER_END]
    return hashlib.blake2b(number, digest_size=20).hexdigest()


def arrival_text(at_ms: int) -> bytes:
    """Return a time as seconds with three decimals, always of the same width."""
    return b"%010d.%03d" % divmod(at_ms, 1000)


class _JsonEntry(msgspec.Struct):
    Data: msgspec.Raw = msgspec.Raw()
    PartitionKey: str | None = None
    ExplicitHashKey: str | None = None


class _JsonPutRecords(msgspec.Struct):
    Records: list[_JsonEntry] | None = None
    StreamName: str | None = None
    StreamARN: str | None = None
    DryRun: bool | None = None


class JsonWire:
    """`application/x-amz-json-1.1`."""

    content_type = "application/x-amz-json-1.1"

    def __init__(self) -> None:
        self._put_records = msgspec.json.Decoder(_JsonPutRecords)
        self._encoder = msgspec.json.Encoder(enc_hook=_json_timestamp)

    def decode(self, body: bytes) -> Any:
        return read_json(body) if body else {}

    def decode_put_records(self, body: bytes) -> tuple[dict[str, Any], list[Entry] | None]:
        """Read a PutRecords request without turning its data into objects."""
        check_values(body)
        try:
            request = self._put_records.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise serialization(f"the body is not a PutRecords request: {error}") from error
        fields = {"StreamName": request.StreamName, "StreamARN": request.StreamARN, "DryRun": request.DryRun}
        if request.Records is None:
            return fields, None
        return fields, [
            Entry(*_json_data(item.Data), item.PartitionKey, item.ExplicitHashKey) for item in request.Records
        ]

    def entry(self, document: dict[str, Any]) -> Entry:
        data = document["Data"]
        if not isinstance(data, str):
            raise serialization("Data must be base64 text")
        key, explicit = document.get("PartitionKey"), document.get("ExplicitHashKey")
        return Entry(*_quoted_base64(data.encode()), key, explicit)

    def encode(self, document: Any) -> bytes:
        return self._encoder.encode(document)

    def put_records_answer(self, results: Sequence[EntryResult], failed: int, rest: dict[str, Any]) -> bytes:
        items = ",".join(
            f'{{"SequenceNumber":"{r.number}","ShardId":"{r.shard_id}"}}'
            if not r.code
            else msgspec.json.encode({"ErrorCode": r.code, "ErrorMessage": r.message}).decode()
            for r in results
        )
        others = "".join(f',"{name}":{self.encode(value).decode()}' for name, value in rest.items())
        return f'{{"FailedRecordCount":{failed},"Records":[{items}]{others}}}'.encode()

    def get_records_answer(self, texts: Sequence[bytes], rest: dict[str, Any]) -> bytes:
        return b'{"Records":[%b],%b' % (b",".join(texts), self.encode(rest)[1:])

    def queue_records_answer(self, records: Sequence[QueueRecord]) -> bytes:
        """Put the members of each delivery before those of the stored record, without its sequence number."""
        return b'{"QueueRecords":[%b]}' % b",".join(
            b'{"ReceiptHandle":"%b","RecordId":"%b","FirstReceiveTimestamp":%b,"ReceiveCount":%d,%b}'
            % (
                each.handle.encode(),
                record_id(each.text).encode(),
                arrival_text(each.first_ms),
                each.receives,
                each.text[_AFTER_NUMBER : -len(_ENCRYPTED) if each.text.endswith(_ENCRYPTED) else -1],
            )
            for each in records
        )


class CborWire:
    """`application/x-amz-cbor-1.1`, as the AWS SDK for Java speaks it."""

    content_type = "application/x-amz-cbor-1.1"

    def decode(self, body: bytes) -> Any:
        return cbor.decode(body) if body else {}

    def decode_put_records(self, body: bytes) -> tuple[dict[str, Any], list[Entry] | None]:
        document = self.decode(body)
        if not isinstance(document, dict):
            raise serialization("the body must be a map")
        fields = {name: document.get(name) for name in ("StreamName", "StreamARN", "DryRun")}
        records = document.get("Records")
        if records is None:
            return fields, None
        if not isinstance(records, list) or not all(isinstance(r, dict) for r in records):
            raise serialization("Records must be a list of maps")
        return fields, [self._entry(record) for record in records]

    def entry(self, document: dict[str, Any]) -> Entry:
        return self._entry(document)

    def _entry(self, document: dict[str, Any]) -> Entry:
        data, key, explicit = (document.get(n) for n in ("Data", "PartitionKey", "ExplicitHashKey"))
        if data is not None and not isinstance(data, bytes):
            raise serialization("Data must be a byte string")
        if not isinstance(key, str | None) or not isinstance(explicit, str | None):
            raise serialization("PartitionKey and ExplicitHashKey must be text")
        if data is None:
            return Entry(None, 0, key, explicit)
        return Entry(b'"%b"' % binascii.b2a_base64(data, newline=False), len(data), key, explicit)

    def encode(self, document: dict[str, Any]) -> bytes:
        return cbor.encode(document)

    def put_records_answer(self, results: Sequence[EntryResult], failed: int, rest: dict[str, Any]) -> bytes:
        return cbor.encode(
            {
                "FailedRecordCount": failed,
                "Records": [
                    {"ErrorCode": r.code, "ErrorMessage": r.message}
                    if r.code
                    else {"SequenceNumber": r.number, "ShardId": r.shard_id}
                    for r in results
                ],
                **rest,
            }
        )

    def get_records_answer(self, texts: Sequence[bytes], rest: dict[str, Any]) -> bytes:
        pieces = [cbor.head(5, 1 + len(rest)), _cbor_text("Records"), cbor.head(4, len(texts))]
        pieces.extend(_cbor_records(texts))
        for key, value in rest.items():
            pieces += (_cbor_text(key), cbor.encode(value))
        return b"".join(pieces)

    def queue_records_answer(self, records: Sequence[QueueRecord]) -> bytes:
        pieces = [cbor.head(5, 1), _cbor_text("QueueRecords"), cbor.head(4, len(records))]
        for each in records:
            arrival_ms, data, key, _ = _record_parts(each.text)
            members = {
                "ReceiptHandle": each.handle,
                "RecordId": record_id(each.text),
                "FirstReceiveTimestamp": Timestamp(each.first_ms),
                "ReceiveCount": each.receives,
                "ApproximateArrivalTimestamp": Timestamp(arrival_ms),
                "Data": data,
            }
            pieces.append(cbor.encode(members if key is None else {**members, "PartitionKey": key}))
        return b"".join(pieces)


def _cbor_text(value: str) -> bytes:
    raw = value.encode()
    return cbor.head(3, len(raw)) + raw


_CBOR_ENCRYPTED = _cbor_text("EncryptionType") + _cbor_text("KMS")
_CBOR_NUMBER = _cbor_text("SequenceNumber") + cbor.head(3, 56)
_CBOR_TIME = _cbor_text("ApproximateArrivalTimestamp") + _TIMESTAMP_HEAD
_CBOR_DATA = _cbor_text("Data")
_CBOR_KEY = _cbor_text("PartitionKey")


_DATA = msgspec.json.Decoder(bytes)


def _record_parts(text: bytes) -> tuple[int, bytes, str | None, bool]:
    """Return a stored record's arrival in milliseconds, data, partition key if any, and whether it is encrypted."""
    data_end = text.index(b'"', _DATA_AT)
    data = _DATA.decode(text[_DATA_AT - 1 : data_end + 1])
    encrypted = text.endswith(_ENCRYPTED)
    key_json = text[data_end + _KEY_GAP : -len(_ENCRYPTED) if encrypted else -1]
    key: str | None = msgspec.json.decode(key_json) if key_json else None
    time_ms = int(text[_TIME_AT : _TIME_AT + 10]) * 1000 + int(text[_TIME_END - 3 : _TIME_END])
    return time_ms, data, key, encrypted


def _cbor_records(texts: Iterable[bytes]) -> Iterable[bytes]:
    head = cbor.head
    for text in texts:
        time_ms, data, key, encrypted = _record_parts(text)
        yield b"".join(
            (
                head(5, 3 + encrypted + (key is not None)),
                _CBOR_ENCRYPTED if encrypted else b"",
                _CBOR_NUMBER,
                text[_NUMBER_AT:_NUMBER_END],
                _CBOR_TIME,
                head(0, time_ms),
                _CBOR_DATA,
                head(2, len(data)),
                data,
                b"" if key is None else _CBOR_KEY + _cbor_text(key),
            )
        )


def _json_timestamp(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return value.ms / 1000
    raise TypeError(f"no JSON for {type(value).__name__}")


def _json_data(raw: msgspec.Raw) -> tuple[bytes | None, int]:
    """Return the data of an entry as a JSON string of base64, as it stands in the body, and the number of bytes that it encodes.

    The usual case is checked with one pass over the bytes and no decoding: nothing outside the alphabet
    but the quotes and the padding at the end.
    """
    quoted = bytes(raw)
    padding = quoted.translate(None, _QUOTED_BASE64)
    if (
        padding in (b"", b"=", b"==")
        and len(quoted) & 3 == 2
        and quoted[0] == _QUOTE
        and quoted.endswith(padding + b'"')
    ):
        return quoted, (len(quoted) - 2) // 4 * 3 - len(padding)
    if not quoted or quoted == b"null":
        return None, 0
    if quoted[0] != _QUOTE:
        raise serialization("Data must be base64 text")
    # some encoders write "/" as "\/"
    return _quoted_base64(msgspec.json.decode(quoted).encode())


def _quoted_base64(text: bytes) -> tuple[bytes, int]:
    try:
        return b'"%b"' % text, len(binascii.a2b_base64(text, strict_mode=True))
    except binascii.Error as error:
        raise serialization(f"Data is not base64: {error}") from error


JSON = JsonWire()
CBOR = CborWire()


def wire_for(content_type: str) -> Wire:
    """Return the encoding that a Content-Type names; JSON for anything else than CBOR."""
    return CBOR if "cbor" in content_type else JSON
