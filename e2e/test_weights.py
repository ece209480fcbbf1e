"""CPU requests are weights: what the profiles `specon` and `elastic` go by where pods without limits crowd a node."""

import json
import time
from collections.abc import Mapping

import pytest

from harness.jobs import Jobs, sleepers, until

BUSY = "(n=$(nproc); [ $n -ge 4 ] || n=4; for i in $(seq $n); do while :; do :; done & done; wait)"
"""As many as this machine has cores, in each pod, or more: either alone could use them all."""
WATCHED_S = 8


@pytest.mark.thorough  # it tests the kubelet and the kernel, not this project
def test_requests_of_pods_without_limits_are_weights(jobs: Jobs) -> None:
    """Two busy pods on a node share it by what they request; a change in place changes that of what runs; and what
    one leaves the other takes (work-conserving)."""
    node = jobs.cluster.workers()[0]
    for name, cpu in (("light", "100m"), ("heavy", "400m")):
        job = sleepers(name, BUSY, Worker=1)
        pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
        pod["nodeSelector"] = {"kubernetes.io/hostname": node}
        pod["containers"][0]["resources"] = {"requests": {"cpu": cpu}}
        jobs.apply(job)
    for name in ("light", "heavy"):
        jobs.wait_for(name, "Running")

    alike = 1.6
    shares = used(jobs)
    assert 4 / alike < shares["heavy"] / shares["light"] < 4 * alike

    request(jobs, {"light": "400m", "heavy": "100m"})
    then = used(jobs)
    assert 4 / alike < then["light"] / then["heavy"] < 4 * alike
    assert all(
        pod["status"]["containerStatuses"][0]["restartCount"] == 0
        for name in ("light", "heavy")
        for pod in jobs.pods(name).values()
    )

    jobs.kubectl("delete", "tfjob", "light")
    until(lambda: not jobs.pods("light"), 180, lambda: jobs.describe("light"))
    assert used(jobs, "heavy")["heavy"] > 2 * then["heavy"]


def used(jobs: Jobs, *names: str) -> dict[str, float]:
    """CPUs that the pods of the jobs use now, by job."""

    def read(name: str) -> tuple[float, float]:
        """Seconds of CPU, and when that was read, by one clock: a command takes its time to get there."""
        read = (
            "cut -d' ' -f1 /proc/uptime; cat /sys/fs/cgroup/cpuacct/cpuacct.usage 2>/dev/null || "
            "awk '/usage_usec/ {print $2 * 1000}' /sys/fs/cgroup/cpu.stat"
        )
        at, used = jobs.kubectl("exec", f"{name}-worker-0", "--", "sh", "-c", read).split()
        return int(used) / 1e9, float(at)

    names = names or ("light", "heavy")
    before = {name: read(name) for name in names}
    time.sleep(WATCHED_S)
    after = {name: read(name) for name in names}
    return {name: (after[name][0] - before[name][0]) / (after[name][1] - before[name][1]) for name in names}


def request(jobs: Jobs, cpu: Mapping[str, str]) -> None:
    """Change what running pods request, in place, and wait for the kubelet."""
    for name, millicores in cpu.items():
        container = jobs.pods(name)[f"{name}-worker-0"]["spec"]["containers"][0]["name"]
        patch = {"spec": {"containers": [{"name": container, "resources": {"requests": {"cpu": millicores}}}]}}
        jobs.kubectl("patch", "pod", f"{name}-worker-0", "--subresource=resize", "--patch", json.dumps(patch))

    def done() -> bool:
        pods = [pod for name in cpu for pod in jobs.pods(name).values()]
        found = {
            pod["metadata"]["name"]: pod["status"]["containerStatuses"][0].get("resources", {}).get("requests")
            for pod in pods
        }
        return found == {f"{name}-worker-0": {"cpu": millicores} for name, millicores in cpu.items()}

    until(done, 180, lambda: "\n".join(map(jobs.describe, cpu)))
