"""How peers are installed: never by half; a peer that cannot be installed is a reason to skip, not a failure."""

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[3] / "tools" / "peers.py"


@pytest.fixture
def peers(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("peers_under_test", TOOL)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "peers_under_test", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "peers")
    return module


def peer(module, install):
    return module.Peer("p", "1", install, lambda folder, port: ([], {}))


def test_a_peer_is_installed_once(peers):
    installed = []
    one = peer(peers, lambda folder: (folder.mkdir(), installed.append(folder)))
    peers.install(one)
    peers.install(one)
    assert installed == [peers.FOLDER / "p-1"]


def test_a_peer_that_was_half_installed_is_installed_anew(peers):
    def fails(folder):
        folder.mkdir()
        (folder / "half").touch()
        raise peers.PeerUnavailable("no network")

    with pytest.raises(peers.PeerUnavailable, match="no network"):
        peers.install(peer(peers, fails))
    peers.install(peer(peers, lambda folder: folder.mkdir()))
    assert [path.name for path in (peers.FOLDER / "p-1").iterdir()] == [".installed"]


def test_without_node_the_reason_says_so(peers, monkeypatch):
    monkeypatch.setattr(peers.shutil, "which", lambda name: None)
    with pytest.raises(
        peers.PeerUnavailable, match="kinesis-local needs node and npm, and they are not on the PATH"
    ):
        peers.install(peers.PEERS["kinesis-local"])


def test_a_failed_installation_gives_the_last_words_of_the_installer(peers):
    with pytest.raises(peers.PeerUnavailable, match=r"^the installer failed: no such package$"):
        peers._run(["sh", "-c", "echo trying; echo no such package >&2; exit 1"], "the installer")


def test_a_peer_that_ends_at_once_is_a_failure_with_what_it_printed(peers, tmp_path, monkeypatch):
    broken = peers.Peer(
        "p", "1", lambda folder: folder.mkdir(), lambda folder, port: (["sh", "-c", "echo why"], {})
    )
    monkeypatch.setitem(peers.PEERS, "p", broken)
    with (
        pytest.raises(RuntimeError, match="p ended at once with status 0: why"),
        peers.running("p", tmp_path / "log"),
    ):
        pass
