"""Log records as JSON, one document per line, for log collectors."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from penstock.runtime.own_loggers import bounded_trace, with_few_errors


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
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            shown = (type(error), with_few_errors(error), error.__traceback__)
            # Not `exc_text`, which the formatter of another handler may have set.
            document["exception"] = bounded_trace(self.formatException(shown))
        return json.dumps(document)
