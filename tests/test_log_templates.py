"""Templates of log messages. Error trackers such as Sentry make one issue of all events with the same template."""

import re
from pathlib import Path

SOURCES = Path(__file__).parents[1]
_ONLY_A_PLACEHOLDER = re.compile(
    r"\.(?:debug|info|warning|error|critical|exception|log)\(\s*(?:[^\"()]*,\s*)?\"%[sr]\""
)


def test_a_log_message_has_words_of_its_own():
    found = [
        f"{path.name}: {match.group()}"
        for folder in ("src", "local/src")
        for path in (SOURCES / folder).rglob("*.py")
        for match in _ONLY_A_PLACEHOLDER.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []
