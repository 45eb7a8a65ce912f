"""The Dockerfile, the compose file and the manifests in deploy/ name commands, extras, ports and paths that exist."""

from __future__ import annotations

import re
import shlex
import tomllib
import urllib.error
import urllib.request

import pytest
from packaging.specifiers import SpecifierSet

from deploy_files import CONTAINER, DEPLOY, DEPLOYMENT, MANIFESTS, POD, SERVICES
from docs_blocks import ROOT, run_blocks
from penstock.cli.dashboard_command import check_token
from penstock.cli.main import build_parser
from penstock.consumer import ConsumerOptions
from penstock.consumer.metrics_prometheus import PrometheusMetrics
from penstock.runtime.consumer_run import STOP_SLACK_S

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
STAGES = {
    name: (base, text)
    for base, name, text in re.findall(
        r"^FROM (\S+) AS (\w+)\n(.*?)(?=^FROM|\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL
    )
}
_SECONDS = re.compile(r"(\d+)s")


def entrypoint_of(target):
    """What a stage of the Dockerfile runs, its own or that of the stage below."""
    base, text = STAGES[target]
    found = re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE)
    return found[-1] if found else entrypoint_of(base)


def calls():
    """Every call of the command line in the files."""
    yield CONTAINER["args"]
    for service in SERVICES.values():
        if entrypoint_of(service["build"]["target"]) == '["penstock"]' and "entrypoint" not in service:
            yield service["command"]
        test = service.get("healthcheck", {}).get("test", [])
        if "penstock" in test:
            yield test[test.index("penstock") + 1 :]
        for part in service["command"]:
            yield from (shlex.split(call) for call in re.findall(r"\| penstock ([^|;]+)", part))


def test_a_call_of_the_command_line_is_one_that_it_takes():
    parser, _ = build_parser()
    parsed = [parser.parse_args([str(word) for word in call]) for call in calls()]
    assert sorted(args.command for args in parsed) == [
        "consume",
        "consume",
        "dashboard",
        "local",
        "put",
        "streams",
    ]


def test_the_image_has_what_its_programs_need():
    named = {extra for _, text in STAGES.values() for extra in re.findall(r"whl\)\[(\w+)\]", text)}
    assert named == {"otel", "spark"} <= PROJECT["optional-dependencies"].keys()
    assert "penstock" in PROJECT["scripts"]
    allowed = SpecifierSet(PROJECT["requires-python"])
    classified = {line.rpartition(" ")[2] for line in PROJECT["classifiers"]}
    for base, _ in STAGES.values():
        if base not in STAGES:
            (version,) = re.findall(r"^python:([\d.]+)-", base)
            assert version in allowed
            assert version in classified


def test_what_is_copied_is_there_and_is_sent_to_the_build():
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sources = [
        source
        for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    assert sources
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in ignored
    assert {PROJECT["readme"], *PROJECT["license-files"]} <= set(sources)


def test_the_user_of_the_image_is_the_one_that_the_pod_demands():
    (uid,) = re.findall(r"useradd .*--uid (\d+)", DOCKERFILE)
    assert POD["securityContext"] == {"runAsNonRoot": True, "runAsUser": int(uid)}
    for name, (_, text) in STAGES.items():
        users = re.findall(r"^USER (\d+)$", text, re.MULTILINE)
        assert name == "wheel" or users[-1] == uid


def test_the_program_of_the_query_is_the_readmes_pipeline_and_its_checkpoint_is_kept():
    program = (DEPLOY / "pipeline.py").read_text()
    assert program in run_blocks("README.md")
    (location,) = re.findall(r'"checkpointLocation", "([^"]+)"', program)
    mounts = dict(mount.split(":")[:2] for mount in SERVICES["query"]["volumes"])
    assert mounts == {"./pipeline.py": SERVICES["query"]["command"][0], "checkpoint": location}
    assert location in DOCKERFILE, "the folder's owner is the image's user"


def test_every_container_talks_to_the_embedded_server_as_that_listens():
    parser, _ = build_parser()
    port = parser.parse_args(SERVICES["kinesis"]["command"]).port
    for name, service in SERVICES.items():
        assert service["environment"]["AWS_ENDPOINT_URL"] == f"http://127.0.0.1:{port}"
        if name != "kinesis":
            assert service["network_mode"] == "service:kinesis", "it listens on loopback only"


def metrics_port_of(call):
    parser, _ = build_parser()
    return parser.parse_args([str(word) for word in call]).metrics_port


def dashboard_call():
    parser, _ = build_parser()
    return parser.parse_args(SERVICES["dashboard"]["command"])


def test_the_dashboard_is_reached_with_the_token_that_it_takes():
    environment = SERVICES["dashboard"]["environment"]
    check_token(dashboard_call().host, environment["PENSTOCK_DASHBOARD_TOKEN"])
    # In quotes: a shell takes a bare question mark for a pattern.
    address = f'"http://localhost:8000/?token={environment["PENSTOCK_DASHBOARD_TOKEN"]}"'
    assert address in (DEPLOY / "compose.yml").read_text()


def test_the_ports_are_those_on_which_the_consumer_serves():
    (port,) = CONTAINER["ports"]
    assert metrics_port_of(CONTAINER["args"]) == ("0.0.0.0", port["containerPort"])
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port["containerPort"])
    host, served = metrics_port_of(SERVICES["consumer"]["command"])
    assert host == "0.0.0.0"
    shown = dashboard_call().port
    mapped = [mapping.split(":") for mapping in SERVICES["kinesis"]["ports"]]
    assert mapped == [["127.0.0.1", str(served), str(served)], ["127.0.0.1", str(shown), str(shown)]]
    assert f"http://127.0.0.1:{served}/health" in SERVICES["consumer"]["healthcheck"]["test"][-1]


@pytest.mark.parametrize("probe", ["readinessProbe", "startupProbe", "livenessProbe"])
def test_a_probe_asks_for_a_path_that_is_served(probe):
    asked = CONTAINER[probe]["httpGet"]
    assert asked["port"] in {port["name"] for port in CONTAINER["ports"]}
    with PrometheusMetrics(port=0) as metrics:
        with pytest.raises(urllib.error.HTTPError) as caught:  # no consumer has started
            urllib.request.urlopen(f"http://127.0.0.1:{metrics.port}{asked['path']}")
        with caught.value as answer:
            assert answer.code == 503


def test_a_stop_has_the_time_that_it_may_take():
    options = ConsumerOptions()
    needed_s = max(options.shutdown_timeout_s, options.handover_timeout_s) + STOP_SLACK_S
    assert POD["terminationGracePeriodSeconds"] > needed_s
    for name in ("consumer", "query"):
        (grace_s,) = _SECONDS.findall(SERVICES[name]["stop_grace_period"])
        assert int(grace_s) > needed_s
    assert SERVICES["query"]["stop_signal"] == "SIGINT", "what the program waits for"


def test_the_manifests_belong_together():
    by_kind = {each["kind"]: each for each in MANIFESTS}
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    assert DEPLOYMENT["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert by_kind["ServiceAccount"]["metadata"]["name"] == POD["serviceAccountName"]
    named = set(re.findall(r"\$\((\w+)\)", " ".join(CONTAINER["args"])))
    assert named <= {variable["name"] for variable in CONTAINER["env"]}
