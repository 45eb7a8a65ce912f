"""The jars of Delta Lake and Iceberg: fetched once into build/lakehouse."""

from __future__ import annotations

import urllib.error
import urllib.request

from docs_blocks import ROOT

JARS = ROOT / "build" / "lakehouse" / "ivy"
CENTRAL = "https://repo1.maven.org/maven2"


def may_have(coordinates):
    """Return whether the jars are here already, or Maven Central answers."""
    group, name, version = coordinates.split(":")
    if (JARS / "jars" / f"{group}_{name}-{version}.jar").exists():
        return True
    path = f"{CENTRAL}/{group.replace('.', '/')}/{name}/{version}/{name}-{version}.pom"
    try:
        with urllib.request.urlopen(path, timeout=20):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False
