"""What a person sees and does with kubectl."""

import pytest

from harness.jobs import Jobs, sleepers, until
from harness.progress import CommandFailed


@pytest.mark.beside
def test_columns_events_and_cascading_delete(jobs: Jobs) -> None:
    jobs.apply(sleepers("seen", PS=1, Worker=2))
    jobs.wait_for("seen", "Running")
    header, row = jobs.kubectl("get", "tfjobs").splitlines()
    assert header.split()[:3] == ["NAME", "STATE", "AGE"]
    assert row.split()[:2] == ["seen", "Running"]
    assert {"WORKERS", "PS"} <= set(header.split())
    jobs.wait_for_words("seen", "SuccessfulCreatePod", "SuccessfulCreateService", "TFJobRunning")
    assert sorted(jobs.pods("seen")) == ["seen-ps-0", "seen-worker-0", "seen-worker-1"]
    assert len(jobs.get("services")["items"]) == 3

    jobs.kubectl("delete", "tfjob", "seen")
    until(
        lambda: not jobs.pods("seen") and not jobs.get("services")["items"],
        180,
        lambda: "pods or services are left:\n" + jobs.kubectl("get", "pods,services"),
    )


@pytest.mark.beside
def test_replicas_find_each_other_by_the_names_in_tf_config(jobs: Jobs) -> None:
    """Across nodes: each worker asks for every host that TF_CONFIG names. A pod that has ended has no name any more, so
    the others wait for the first worker, which ends the job, however late it starts."""
    ask = (
        "python3 -c 'import json, os, socket, time\n"
        'hosts = [h.split(":")[0] for t in json.loads(os.environ["TF_CONFIG"])["cluster"].values() for h in t]\n'
        "deadline = time.time() + 200\n"
        "while hosts and time.time() < deadline:\n"
        "    try: socket.gethostbyname(hosts[0]); hosts.pop(0)\n"
        "    except OSError: time.sleep(1)\n"
        "assert not hosts, hosts\n"
        'time.sleep(600 * bool(json.loads(os.environ["TF_CONFIG"])["task"]["index"]))'
        "'"
    )
    jobs.apply(sleepers("names", command=ask, Worker=3))
    jobs.wait_for("names", "Succeeded")


@pytest.mark.beside
def test_a_wrong_spec_is_refused_with_the_path_of_the_field(jobs: Jobs) -> None:
    job = sleepers("wrong", Worker=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "trainer"
    with pytest.raises(CommandFailed, match=r"spec\.tfReplicaSpecs") as refused:
        jobs.apply(job)
    assert "tensorflow" in str(refused.value)  # what would be allowed

    job = sleepers("wrong", Worker=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = "two"
    with pytest.raises(CommandFailed, match=r"spec\.tfReplicaSpecs\.Worker\.replicas.*integer"):
        jobs.apply(job)

    with pytest.raises(CommandFailed, match=r"spec\.tfReplicaSpecs.*more than 1 Chief or Master"):
        jobs.apply(sleepers("wrong", Chief=1, Master=1))
    assert jobs.get("tfjobs")["items"] == []
