"""Each published distribution, built once for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from built_distributions import FOLDERS, Built, build, new_environment


@pytest.fixture(scope="session")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_environment(tmp_path_factory.mktemp("builder"), "hatchling>=1.25")


@pytest.fixture(scope="session")
def built(builder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    return {name: build(builder, name, tmp_path_factory.mktemp(name)) for name in FOLDERS}
