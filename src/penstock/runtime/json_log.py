"""Log records as JSON, one document per line, for log collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from penstock.runtime.own_loggers import bounded_trace


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON: `time` (UTC), `level`, `logger`, `thread`, `message` and perhaps `exception`.

    Control characters are escaped, so no record can send control sequences to a terminal. A traceback has 32,000 characters at most.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, UTC)
        document = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        if record.exc_info:
            # Not `exc_text`, which the formatter of another handler may have set.
            document["exception"] = bounded_trace(self.formatException(record.exc_info))
        return json.dumps(document)
