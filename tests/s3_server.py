"""A small S3 for tests: buckets in memory, conditional writes, listings with pages and common prefixes, and servers that lack some.

All buckets exist, or none. Each request is answered under one lock, as S3 answers conditional writes: a check and its write are one step.
"""

from __future__ import annotations

import hashlib
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape


class S3Server:
    """Serves objects on a free port; a context manager.

    Args:
        ignored: Headers and query arguments that the server does as if it never got: `If-None-Match`, `If-Match`, `delimiter`.
        answers: Error code by header: the answer to each request that has it, such as `{"If-None-Match": "501"}`.
        page_max: Entries of one page of a listing.
    """

    def __init__(self, ignored=(), answers=None, page_max=1000):
        self.ignored = frozenset(ignored)
        self.answers = dict(answers or {})
        self.page_max = page_max
        self.lock = threading.RLock()
        self.objects: dict[str, bytes] = {}  # by key, of all buckets
        self.requests: list[tuple[str, str]] = []  # (method, key) of each request but listings, in order
        self.sent_bytes = 0
        self.denied: set[str] = set()  # methods that are answered 403
        self.has_bucket = True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.s3 = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def clear(self):
        """Forget all objects and requests, and lack nothing any more."""
        with self.lock:
            self.objects.clear()
            self.requests.clear()
            self.denied.clear()
            self.answers.clear()
            self.ignored = frozenset()
            self.has_bucket = True

    def gets(self, key):
        """Return how often an object was read."""
        with self.lock:
            return self.requests.count(("GET", key))

    def keys(self, prefix=""):
        with self.lock:
            return sorted(key for key in self.objects if key.startswith(prefix))

    def remove(self, prefix):
        """Delete all objects under a prefix, as an operator does."""
        with self.lock:
            for key in self.keys(prefix):
                del self.objects[key]


def tag_of(data):
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def parse_request(self):
        is_request = super().parse_request()
        if is_request and not self.server.s3.has_bucket:
            self._body()
            self._fail(404, "NoSuchBucket")
            return False
        return is_request

    def do_PUT(self):
        key, _ = self._target()
        data = self._body()
        with self.server.s3.lock:
            if self._is_refused("PUT", key):
                return
            self.server.s3.objects[key] = data
        self._send(200, b"", ETag=tag_of(data))

    def do_DELETE(self):
        key, _ = self._target()
        with self.server.s3.lock:
            if self._is_refused("DELETE", key):
                return
            self.server.s3.objects.pop(key, None)
        self._send(204, b"")

    def do_GET(self):
        key, query = self._target()
        s3 = self.server.s3
        if not key:
            self._list(query)
            return
        with s3.lock:
            if self._is_refused("GET", key):
                return
            data = s3.objects.get(key)
        if data is None:
            self._fail(404, "NoSuchKey")
        else:
            self._send(200, data, ETag=tag_of(data))

    def _is_refused(self, method, key):
        s3 = self.server.s3
        s3.requests.append((method, key))
        if method in s3.denied:
            return self._fail(403, "AccessDenied")
        given = {name: self.headers.get(name) for name in ("If-None-Match", "If-Match")}
        given = {name: value for name, value in given.items() if value is not None}
        for name, code in s3.answers.items():
            if name in given:
                return self._fail(int(code), {"501": "NotImplemented", "412": "PreconditionFailed"}[code])
        stands = s3.objects.get(key)
        for name, value in given.items():
            if name in s3.ignored:
                continue
            if name == "If-None-Match" and stands is not None:
                return self._fail(412, "PreconditionFailed")
            if name == "If-Match" and stands is None:
                return self._fail(404, "NoSuchKey")
            if name == "If-Match" and value != tag_of(stands):
                return self._fail(412, "PreconditionFailed")
        return False

    def _list(self, query):
        s3 = self.server.s3
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        delimiter = "" if "delimiter" in s3.ignored else query.get("delimiter", "")
        with s3.lock:
            entries = {}
            for key in s3.keys(prefix):
                head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                entries[prefix + head + found if found else key] = None if found else s3.objects[key]
        names = [name for name in sorted(entries) if name > after]
        page = names[: min(s3.page_max, int(query.get("max-keys", "1000")))]
        parts = []
        for name in page:
            shown, data = urllib.parse.quote(name), entries[name]
            parts.append(
                f"<CommonPrefixes><Prefix>{shown}</Prefix></CommonPrefixes>"
                if data is None
                else f"<Contents><Key>{shown}</Key><ETag>{escape(tag_of(data))}</ETag><Size>{len(data)}</Size></Contents>"
            )
        is_cut = len(names) > len(page)
        following = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if is_cut else ""
        body = (
            f"<ListBucketResult><KeyCount>{len(page)}</KeyCount><IsTruncated>{str(is_cut).lower()}</IsTruncated>"
            f"<EncodingType>url</EncodingType>{following}{''.join(parts)}</ListBucketResult>"
        )
        self._send(200, body.encode())

    def _target(self):
        """Return the key without its bucket, and the query."""
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        return urllib.parse.unquote(url.path.lstrip("/").partition("/")[2]), query

    def _body(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        body, size = b"", -1
        while size:
            line, _, data = data.partition(b"\r\n")
            size = int(line.split(b";")[0], 16)
            body, data = body + data[:size], data[size + 2 :]
        return body

    def _fail(self, status, code):
        self._send(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())
        return True

    def _send(self, status, body, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.server.s3.sent_bytes += len(body)
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):  # the client has read enough
            self.close_connection = True
