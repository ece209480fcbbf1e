"""A round ends: what it does to jobs is counted, and there is a limit. It is no clock: both worlds decide the same."""

from typing import Final

from elastic_tfjob.scheduling.snapshot import Job, Snapshot

FEWEST_ACTIONS: Final = 10_000
ACTIONS_EACH: Final = 100
"""How often a round may act: so often for each job and for each replica that it may have, and the fewest besides. Of
10,000 jobs, under any profile, rounds act at most once for every second job or replica."""


class EndlessRoundError(RuntimeError):
    """A round acted so often that it will not end: a bug of the profile, which some job sets off."""

    def __init__(self, profile: str, job: str, limit: int) -> None:
        super().__init__(f"{profile}: the round did not end after {limit:,} actions")
        self.profile = profile
        self.job = job
        self.add_note(f"the last one was on {job}")  # its name is not for the owners of others, who read the message


class ActionLimit:
    """Of one round of this profile on this Snapshot."""

    def __init__(self, snapshot: Snapshot, profile: str) -> None:
        self._snapshot = snapshot
        self._profile = profile
        self._actions = 0
        self._most = FEWEST_ACTIONS
        """Until this many, nobody looks how many jobs and replicas there are."""

    def count(self, job: Job) -> None:
        """One action on this job. Raises EndlessRoundError beyond the limit."""
        self._actions += 1
        if self._actions > self._most:
            self._most = most_actions(self._snapshot)
            if self._actions > self._most:
                raise EndlessRoundError(self._profile, job.key, self._most)


def most_actions(snapshot: Snapshot) -> int:
    """How often a round of this Snapshot may act."""
    jobs = snapshot.jobs.values()
    replicas = sum(
        max(group.maximum, len(job.placement.get(group.type, ()))) for job in jobs for group in job.spec.groups
    )
    return FEWEST_ACTIONS + ACTIONS_EACH * (len(jobs) + replicas)
