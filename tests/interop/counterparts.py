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
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from penstock_local import Handle

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "interop"
BUILD_TIMEOUT_S = 900
RUN_TIMEOUT_S = 600
STORE_PASSWORD = "changeit"


@dataclass(frozen=True)
class Counterpart:
    """One program.

    Attributes:
        name: What it is built as.
        folder: Where its source lies.
        tools: Commands without which it can be neither built nor run.
        build: Command lines, given the folder to build in, which begins as a copy of the source.
        command: Command line, given the folder that it was built in.
    """

    name: str
    folder: str
    tools: tuple[str, ...]
    build: Callable[[Path], list[list[str]]]
    command: Callable[[Path], list[str]]

    def built(self) -> Path:
        """Return the folder of the program, built now if it was not before; skip the test without the tools."""
        missing = [tool for tool in self.tools if shutil.which(tool) is None]
        if missing:
            pytest.skip(f"{self.name} needs {' and '.join(missing)}, which are not on this machine")
        source = HERE / self.folder
        digest = hashlib.sha256(repr(self.build(Path())).encode())
        for path in sorted(source.rglob("*")):
            if path.is_file():
                digest.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
        folder = BUILD / f"{self.name}-{digest.hexdigest()[:12]}"
        done = folder / ".built"
        BUILD.mkdir(parents=True, exist_ok=True)
        with (BUILD / f"{self.name}.lock").open("w") as lock:
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
        done = subprocess.run(
            self.line(server, tmp_path, *arguments, java=java),
            env=environment(server, tmp_path),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def line(self, server: Handle, tmp_path: Path, *arguments: str, java: tuple[str, ...] = ()) -> list[str]:
        """Return the command line that runs it; takes what `run` takes."""
        command = self.command(self.built())
        if command[0] == "java":
            command[1:1] = [*java, *trust_options(server, tmp_path)]
        return [*command, *arguments]


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


def maven(*properties: str) -> Callable[[Path], list[list[str]]]:
    """Return the build of a Java program with what it depends on."""
    goals = ["package", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    return lambda folder: [["mvn", "-q", "-B", f"-Dbuild.folder={folder / 'target'}", *properties, *goals]]


def java(main: str, *options: str) -> Callable[[Path], list[str]]:
    """Return how to start a class that `maven` has built, as a small process that starts fast."""
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    small += ["-Dorg.slf4j.simpleLogger.showDateTime=true", *options]
    return lambda folder: [
        "java",
        *small,
        "-cp",
        f"{folder}/target/classes:{folder}/target/dependency/*",
        main,
    ]


PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def python_env(*requirements: str) -> Callable[[Path], list[list[str]]]:
    """Return the build of a Python program that has an environment of its own."""

    def build(folder: Path) -> list[list[str]]:
        python = f"{folder}/venv/bin/python"
        pip = [python, *PIP[1:], "install", "--quiet", *requirements]
        return [[sys.executable, "-m", "venv", f"{folder}/venv"], pip]

    return build


def python(program: str) -> Callable[[Path], list[str]]:
    """Return how to start a program in the environment that `python_env` has made."""
    return lambda folder: [f"{folder}/venv/bin/python", str(folder / program)]


JAVA_TOOLS = ("java", "keytool", "mvn")
SDK_JAVA = Counterpart("sdk_java", "sdk_java", JAVA_TOOLS, maven(), java("Conversation"))
SDK_JS = Counterpart(
    "sdk_js",
    "sdk_js",
    ("node", "npm"),
    lambda _: [["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]],
    lambda folder: ["node", str(folder / "conversation.mjs")],
)
SDK_GO = Counterpart(
    "sdk_go",
    "sdk_go",
    ("go",),
    lambda _: [["go", "build", "-o", "conversation", "."]],
    lambda folder: [str(folder / "conversation")],
)
SDK_PYTHON = Counterpart(
    "sdk_python",
    "sdk_python",
    (),
    lambda _: [],
    lambda folder: [sys.executable, str(folder / "conversation.py")],
)
(BOTO3,) = (
    each
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    if each.startswith("boto3>=")
)
SDK_PYTHON_OLDEST = Counterpart(
    "sdk_python_oldest",
    "sdk_python",
    (),
    python_env(BOTO3.replace(">=", "==")),
    python("conversation.py"),
)
"""The oldest boto3 that Penstock works with."""
SDK_CLI = Counterpart(
    "sdk_cli",
    "sdk_cli",
    (),
    python_env("awscli"),
    lambda folder: [*python("conversation.py")(folder), f"{folder}/venv/bin/aws"],
)


def installed_cli_2() -> str:
    """Return the AWS CLI of version 2 that this machine has; skip the test without one."""
    for folder in os.get_exec_path():
        command = Path(folder) / "aws"
        if os.access(command, os.X_OK):
            told = subprocess.run(
                [command, "--version"], capture_output=True, text=True, timeout=60, check=False
            )
            if told.stdout.startswith("aws-cli/2."):
                return str(command)
    pytest.skip("the AWS CLI 2 is not on this machine, and PyPI does not have it: apt install awscli")


SDK_CLI_2 = Counterpart(
    "sdk_cli_2",
    "sdk_cli",
    (),
    lambda _: [],
    lambda folder: [sys.executable, str(folder / "conversation.py"), installed_cli_2()],
)
AGGREGATES = Counterpart(
    "agg", "agg", (), python_env("aws-kinesis-agg==1.2.3", "boto3", "six"), python("aggregates.py")
)
"""aws-kinesis-agg imports six and does not require it."""
KCL_2 = Counterpart("kcl_2.7.2", "kcl", JAVA_TOOLS, maven("-Dkcl.version=2.7.2"), java("Worker"))
KCL_3 = Counterpart("kcl_3.5.1", "kcl", JAVA_TOOLS, maven("-Dkcl.version=3.5.1"), java("Worker"))
KCL_2_FAN_OUT = replace(KCL_2, command=java("Worker", "-Dretrieval=default"))
KCL_3_FAN_OUT = replace(KCL_3, command=java("Worker", "-Dretrieval=default"))
KCL_3_COMPATIBLE = replace(
    KCL_3, command=java("Worker", "-Dclient.version=CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X")
)
"""As a fleet of KCL 2.x is upgraded: first all workers run 3.x and behave like 2.x."""
KCL_3_NATIVE = replace(KCL_3, command=java("Worker", "-Dquick.leader=true"))
"""Its leader assigns the leases, sooner than by default."""
PENSTOCK = Counterpart(
    "penstock",
    "penstock_worker",
    (),
    lambda _: [],
    lambda folder: [sys.executable, str(folder / "worker.py")],
)
KPL = Counterpart("kpl", "kpl", JAVA_TOOLS, maven(), java("Produce"))
GLUE = Counterpart("glue", "glue", JAVA_TOOLS, maven(), java("Serde", "-Dfile.encoding=UTF-8"))
"""AWS's serializer and deserializer of the Glue Schema Registry."""
KCLPY_VERSION = "3.2.0"
KCLPY = Counterpart(
    "kclpy",
    "kclpy",
    (*JAVA_TOOLS, "tar"),
    lambda folder: [
        *maven()(folder),
        [*PIP, "download", "--quiet", "--no-deps", "--no-binary", ":all:", f"amazon_kclpy=={KCLPY_VERSION}"],
        ["tar", "xzf", f"amazon_kclpy-{KCLPY_VERSION}.tar.gz"],
    ],
    java("software.amazon.kinesis.multilang.MultiLangDaemon"),
)
"""amazon_kclpy as its source is: its own installation fetches the daemon from one place only, and Maven from any."""
