"""How much faster a job gets with more CPU, from how busy its replicas are. For sizes that were never measured.

The law of utilisation: with u_t the part of its CPU that replica type t uses, a type that gets k_t times as much CPU
would use u_t / k_t of it at the same speed. What follows depends on whether the types work in turns or at once
(Lazowska et al., Quantitative System Performance, 1984, chapters 3 and 5):

    sum of u <= 1   in turns, one step is the sum of its parts:   1 / (1 - sum u + sum u_t / k_t)    (Amdahl)
    sum of u > 1    at once, the busiest one sets the pace:       max u / max (u_t / k_t)
"""

from collections.abc import Mapping


def speedup(use: Mapping[str, float], more: Mapping[str, float]) -> float:
    """The factor on steps per second when types get `more` times the CPU they have (missing: the same); 1 if unknown.

    `use` has the part of their CPU that the types use now, 0 to 1. A type that would get no CPU has no speed to tell.
    """
    if not any(use.values()) or any(more.get(type_, 1.0) <= 0 for type_ in use):
        return 1.0
    then = {type_: u / more.get(type_, 1.0) for type_, u in use.items()}
    together = sum(use.values())
    if together <= 1:
        return 1 / (1 - together + sum(then.values()))
    return max(use.values()) / max(then.values())
