"""The files of `deploy/`: consistent in themselves, and their commands start as plain processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from safepoint.storage.postgres.schema import upgrade
from tests.server.server_process import APPS, ServerProcess
from tests.storage.postgres.postgres_server import PostgresServer

DEPLOY = Path(__file__).parents[2] / "deploy"
Manifest = dict[str, Any]  # Any: YAML


def manifests() -> list[Manifest]:
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    return [each for file in files for each in yaml.safe_load_all(file.read_text())]


def of_kind(kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests() if each["kind"] == kind}


def container(manifest: Manifest) -> Manifest:
    [found] = manifest["spec"]["template"]["spec"]["containers"]
    return dict(found)


def compose() -> Manifest:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def commands() -> list[tuple[str, list[str]]]:
    """What the manifests start: where, and the words after `safepoint`."""
    found = [(name, container(each)["args"]) for kind in ("Deployment", "Job") for name, each in of_kind(kind).items()]
    return found + [(name, each["command"]) for name, each in compose()["services"].items() if "command" in each]


def test_there_is_what_a_cluster_needs() -> None:
    assert set(of_kind("Deployment")) == {"safepoint-api", "safepoint-worker"}
    assert set(of_kind("PodDisruptionBudget")) == {"safepoint-api", "safepoint-worker"}
    assert set(of_kind("Job")) == {"safepoint-upgrade"}
    assert set(of_kind("Service")) == {"safepoint"}
    [scaler] = of_kind("HorizontalPodAutoscaler").values()
    assert scaler["spec"]["scaleTargetRef"]["name"] in of_kind("Deployment")
    assert {"database", "upgrade", "api", "worker"} == set(compose()["services"])


def test_what_selects_pods_finds_them_and_probes_ask_a_port_that_is_served() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in of_kind("Deployment").values()]
    for deployment in of_kind("Deployment").values():
        pod, box = deployment["spec"]["template"], container(deployment)
        assert deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        [port] = box["ports"]
        assert "SAFEPOINT_PEER_ADDRESS" in {each["name"] for each in box["env"]}
        assert str(port["containerPort"]) == box["args"][box["args"].index("--port") + 1]
        assert pod["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
        assert {box[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} == {port["name"]}
        assert {mount["name"] for mount in box["volumeMounts"]} == {each["name"] for each in pod["spec"]["volumes"]}
    for budget in of_kind("PodDisruptionBudget").values():
        assert budget["spec"]["selector"]["matchLabels"] in labels
    for service in of_kind("Service").values():
        assert service["spec"]["selector"] in labels


def test_a_pod_is_given_more_time_than_its_runs_take_to_stop() -> None:
    for deployment in of_kind("Deployment").values():
        args = container(deployment)["args"]
        seconds = float(args[args.index("--shutdown-seconds") + 1]) if "--shutdown-seconds" in args else 10.0
        assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= seconds + 15


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    started = PostgresServer()
    address = started.new_database()
    asyncio.run(upgrade(address))
    yield address
    started.close()


@pytest.mark.postgres
@pytest.mark.parametrize(("where", "words"), commands())
def test_each_command_starts_as_a_plain_process(where: str, words: list[str], url: str, tmp_path: Path) -> None:
    if words[0] == "db":
        line = [sys.executable, "-m", "safepoint", *words, "--store", url]
        done = subprocess.run(line, capture_output=True, text=True, timeout=50, check=False)
        assert done.returncode == 0, (where, done.stderr)
        return
    asked = [word for word in words if word not in ("/apps", "/keys")]
    port = asked.index("--port")
    del asked[port : port + 2]
    asked = [word for word in asked if word != "--data"]
    asked[asked.index("--host") + 1] = "127.0.0.1"
    with ServerProcess(
        tmp_path,
        apps=APPS,
        data=False,
        command=("safepoint", asked[0]),
        options=asked[1:],
        env={"SAFEPOINT_STORE": url},
    ) as server:
        assert (server.get("/health").status, server.get("/ready").status) == (200, 200), where
        assert server.get("/metrics").status == 200
        assert server.terminate() == 0
