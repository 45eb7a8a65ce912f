"""Small programs against libraries of others: built once into `build/interop`, run against an embedded server.

A program lies in a folder of this one, with the build file of its language. What it needs comes from that language's
own registry. Without the language's tools its tests are skipped.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.local import Handle

HERE = Path(__file__).parent
BUILD = HERE.parents[1] / "build" / "interop"
BUILD_TIMEOUT_S = 900
RUN_TIMEOUT_S = 180
STORE_PASSWORD = "changeit"


@dataclass(frozen=True)
class Counterpart:
    """One program.

    Attributes:
        folder: Where its source lies.
        tools: Commands without which it can be neither built nor run.
        build: Command lines, given the folder to build in, which begins as a copy of the source.
        command: Command line, given the folder that it was built in.
    """

    folder: str
    tools: tuple[str, ...]
    build: Callable[[Path], list[list[str]]]
    command: Callable[[Path], list[str]]

    def built(self) -> Path:
        """Return the folder of the program, built now if it was not before; skip the test without the tools."""
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"{self.folder} needs {' and '.join(missing)}, which are not on this machine")
        source = HERE / self.folder
        digest = hashlib.sha256()
        for path in sorted(source.rglob("*")):
            if path.is_file():
                digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
        folder = BUILD / f"{self.folder}-{digest.hexdigest()[:12]}"
        done = folder / ".built"
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / f"{self.folder}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(source, folder)
                for command in self.build(folder):
                    made = subprocess.run(
                        command,
                        cwd=folder,
                        capture_output=True,
                        text=True,
                        timeout=BUILD_TIMEOUT_S,
                        check=False,
                    )
                    assert made.returncode == 0, (
                        f"{command} failed:\n{made.stdout[-3000:]}{made.stderr[-3000:]}"
                    )
                done.touch()
        return folder

    def run(self, server: Handle, tmp_path: Path, *arguments: str, java: tuple[str, ...] = ()) -> str:
        """Run the program to its end with the server's environment; returns what it printed.

        Args:
            server: What it speaks to.
            tmp_path: Where it may write.
            arguments: Its arguments.
            java: Options of the Java machine.
        """
        command = self.command(self.built())
        if command[0] == "java":
            command[1:1] = [*java, *trust_options(server, tmp_path)]
        done = subprocess.run(
            [*command, *arguments],
            env=environment(server, tmp_path),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout


def environment(server: Handle, home: Path) -> Mapping[str, str]:
    """Return what a program sees: the tools of this machine, the server, and nobody's configuration."""
    kept = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    return {**kept, "HOME": str(home), **server.environ()}


def trust_options(server: Handle, folder: Path) -> list[str]:
    """Return the options by which a Java machine trusts a server's certificate."""
    if server.ca_bundle is None:
        return []
    store = folder / "trust.p12"
    command = ["keytool", "-importcert", "-noprompt", "-alias", "penstock", "-file", server.ca_bundle]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={STORE_PASSWORD}"]


def maven(folder: Path) -> list[list[str]]:
    """Return the build of a Java program with what it depends on."""
    goals = ["package", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    return [["mvn", "-q", "-B", f"-Dbuild.folder={folder / 'target'}", *goals]]


def java(main: str) -> Callable[[Path], list[str]]:
    """Return how to start a class that `maven` has built."""
    return lambda folder: ["java", "-cp", f"{folder}/target/classes:{folder}/target/dependency/*", main]


SDK_JAVA = Counterpart("sdk_java", ("java", "keytool", "mvn"), maven, java("Conversation"))
SDK_JS = Counterpart(
    "sdk_js",
    ("node", "npm"),
    lambda _: [["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]],
    lambda folder: ["node", str(folder / "conversation.mjs")],
)
SDK_GO = Counterpart(
    "sdk_go",
    ("go",),
    lambda _: [["go", "build", "-o", "conversation", "."]],
    lambda folder: [str(folder / "conversation")],
)
SDK_PYTHON = Counterpart(
    "sdk_python", (), lambda _: [], lambda folder: [sys.executable, str(folder / "conversation.py")]
)
