"""Log records as JSON, one document per line, for log collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON: `time` (UTC), `level`, `logger`, `thread`, `message` and perhaps `exception`.

    Control characters are escaped, so no record can send control sequences to a terminal.
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
            document["exception"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps(document)
