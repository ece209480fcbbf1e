"""What jobs are told under a profile that goes by the training loss: `specon` as it was published."""

import pytest

from harness.deploy import configured
from harness.jobs import Jobs

from .test_elastic import elastic

PUBLISHED = "profile: specon\nprofiles: {specon: {published: true}}\n"
STEPS = 1_000_000
ALL_IMAGES = 1438
"""That there are to train on: a step of so many has the loss of them all, and climbing it, not one ever falls."""


@pytest.mark.thorough  # unit/test_losses.py
@pytest.mark.one_leader
def test_a_loss_that_rises_or_is_no_number_is_told(jobs: Jobs) -> None:
    """Real TensorFlow climbs the loss, by a learning rate below 0, and leaves the numbers, by a huge one.

    That a loss rises is known after five readings, ten seconds apart, which an operator has in its memory alone."""
    with configured(jobs.cluster, PUBLISHED):
        for name, rate in (("rises", -0.0005), ("diverges", 1e30)):
            job = elastic(jobs, name, steps=STEPS)
            for replica in job["spec"]["tfReplicaSpecs"].values():
                command = replica["template"]["spec"]["containers"][0]["command"]
                command += [f"--learning-rate={rate}", f"--batch-size={ALL_IMAGES}"]
            jobs.apply(job)
        jobs.wait_for_words("diverges", "LossUnusable", "NaN", seconds=400)
        jobs.wait_for_words("rises", "LossRises", "has only risen", seconds=400)
