"""The cap on a scarce cluster's nodes, on folders that look like a node's cgroups."""

import subprocess
from pathlib import Path

import pytest

from harness.cluster import PERIOD_US, Cluster


class Nodes(Cluster):
    """Nodes whose cgroups are a folder each; cores are what they offer."""

    def __init__(self, folder: Path, **cores: float) -> None:
        super().__init__("c", folder)
        object.__setattr__(self, "cores", cores)

    def offered(self) -> dict[str, float]:
        return dict(self.cores)  # type: ignore[attr-defined]

    def on_node(self, node: str, *command: str) -> str:
        there = [str(self.kubeconfig / node) if word == "/sys/fs/cgroup" else word for word in command]
        environment = {"PATH": f"{self.kubeconfig}:/usr/bin:/bin"}
        return subprocess.run(there, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    """One node of each version of cgroups, and a systemctl that says what it was asked."""
    (tmp_path / "systemctl").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\n')
    (tmp_path / "systemctl").chmod(0o755)
    one = tmp_path / "one/cpu/kubelet.slice/kubelet-kubepods.slice"
    two = tmp_path / "two/kubelet.slice/kubelet-kubepods.slice"
    for folder, files in ((one, {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}), (two, {"cpu.max": "max"})):
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_text(content)
    return Nodes(tmp_path, one=0.5, two=0.433)


def test_pods_of_a_node_are_held_to_what_it_offers(nodes: Nodes) -> None:
    assert nodes.cap() == ["one", "two"]
    one = nodes.kubeconfig / "one/cpu/kubelet.slice/kubelet-kubepods.slice"
    assert (one / "cpu.cfs_quota_us").read_text() == f"{PERIOD_US // 2}\n"
    assert (one / "cpu.cfs_period_us").read_text() == f"{PERIOD_US}\n"
    two = nodes.kubeconfig / "two/kubelet.slice/kubelet-kubepods.slice/cpu.max"
    assert two.read_text() == f"{PERIOD_US * 433 // 1000} {PERIOD_US}\n"
    asked = (nodes.kubeconfig / "asked").read_text()
    assert f"kubelet-kubepods.slice CPUQuota=50.00% CPUQuotaPeriodSec={PERIOD_US}us" in asked


def test_the_period_may_be_another(nodes: Nodes) -> None:
    nodes.cap()
    assert nodes.cap(100_000) == ["one", "two"]
    assert (nodes.kubeconfig / "two/kubelet.slice/kubelet-kubepods.slice/cpu.max").read_text() == "43300 100000\n"


def test_only_nodes_without_their_cap_are_named(nodes: Nodes) -> None:
    nodes.cap()
    assert nodes.cap() == []
    (nodes.kubeconfig / "one/cpu/kubelet.slice/kubelet-kubepods.slice/cpu.cfs_quota_us").write_text("-1\n")
    assert nodes.cap() == ["one"]


def test_a_node_without_such_groups_is_an_error(nodes: Nodes) -> None:
    (nodes.kubeconfig / "two/kubelet.slice/kubelet-kubepods.slice/cpu.max").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        nodes.cap()
