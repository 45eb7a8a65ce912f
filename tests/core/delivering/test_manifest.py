"""Manifests of batches: those of earlier versions are read, and those of this version keep the format."""

from __future__ import annotations

import json

from penstock.core.delivering.manifest import Identity, Manifest, Move, parse_manifest

STORED = {
    "delivery": "orders",
    "batch": "000000007",
    "identity": {"first": "1", "last": "2", "hash_min": 3, "hash_max": 4},
    "row_count": 2,
    "dead_count": 1,
    "moves": [{"source": "staged/a", "target": "table/a", "size_bytes": 10}],
    "removes": ["table/old"],
    "rows": "staged/rows",
    "before": "snapshot 5",
    "staged_count": 1,
    "version": 1,
}


def test_a_manifest_keeps_its_format_over_versions():
    """A batch whose driver ended before its commit is finished by the next version."""
    manifest = Manifest(
        delivery="orders",
        batch="000000007",
        identity=Identity("1", "2", 3, 4),
        row_count=2,
        dead_count=1,
        moves=(Move("staged/a", "table/a", 10),),
        removes=("table/old",),
        rows="staged/rows",
        state_before="snapshot 5",
        staged_count=1,
    )
    assert parse_manifest(json.dumps(STORED).encode(), "manifest") == manifest
    assert json.loads(manifest.to_json()) == STORED
