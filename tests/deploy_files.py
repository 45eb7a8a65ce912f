"""The files in deploy/ as the tests read them: what each container runs, and what watches it."""

from __future__ import annotations

from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")  # moto brings it

DEPLOY = Path(__file__).parent.parent / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes/consumer.yml").read_text(encoding="utf-8")))
DEPLOYMENT = next(each for each in MANIFESTS if each["kind"] == "Deployment")
POD = DEPLOYMENT["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
