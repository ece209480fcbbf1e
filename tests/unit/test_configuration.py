"""The operator's configuration: what may be said, and what is answered to the rest."""

import re

import pytest

from elastic_tfjob.api.scenario import NodeCompaction
from elastic_tfjob.controller.model.cluster import selects
from elastic_tfjob.controller.model.settings import Configuration, RescaleLimits, parse_configuration
from elastic_tfjob.scheduling.given_up import CompactionTimes
from harness.hostile_text import ALIASES, LONG_NUMBER, MERGE_KEYS, NO_YAML, named


@pytest.mark.parametrize("text", ["", "# nothing\n", "profiles:\nrescale:\n", "profile: fixed"])
def test_defaults(text: str) -> None:
    assert parse_configuration(text) == Configuration()


def test_parameters_are_those_of_the_chosen_profile() -> None:
    found = parse_configuration("profile: optimus\nprofiles: {optimus: {cooldown_s: 60}, las: {promote_knob: 2}}")
    assert found.parameters.model_dump()["cooldown_s"] == 60


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile: kipz", ("profile", "'kipz'", "fixed", "optimus")),
        ("scope: some", ("scope", "'annotated' or 'all'", "'some'")),
        ("cooldown: 3", ("cooldown is not known", "profile, scope, profiles, rescale, memory, status")),
        ("rescale: {prepare: 3}", ("rescale.prepare is not known", "prepare_timeout_s")),
        ("rescale: {prepare_timeout_s: -1}", ("rescale.prepare_timeout_s", "greater than 0", "-1")),
        ("status: {interval_s: fast}", ("status.interval_s", "'fast'")),
        ("profiles: {optimus: {cooldown: 1}}", ("optimus.cooldown", "cooldown_s")),
        ("profiles: {nobody: {}}", ("profiles.nobody", "optimus")),
        ("profiles: {drf: {place: count}}", ("profiles.drf.place", "simulations")),
        ("- profile", ("must be a mapping",)),
        ("a: [", ("not YAML", "line 1")),
        ("status: {max_requests_per_s: 0.5}", ("status.max_requests_per_s", "greater than or equal to 1", "0.5")),
        ("status: {max_requests_per_s: .inf}", ("status.max_requests_per_s", "finite", "inf")),
        ("status: {interval_s: 0.001}", ("status.interval_s", "greater than or equal to 0.01", "0.001")),
        ("status: {interval_s: .nan}", ("status.interval_s", "finite", "nan")),
        ("rescale: {switch_timeout_s: 1e300}", ("rescale.switch_timeout_s", "less than or equal to 3153600000")),
        ("profiles: {kips: {interval_s: .inf}}", ("kips.interval_s", "finite")),
        ("profiles: {kips: {cpu_growth: .nan}}", ("kips.cpu_growth", "finite")),
        ("profiles: {kips: {cooldown_s: 1e300}}", ("kips.cooldown_s", "less than or equal to 3153600000")),
        ("profiles: {kips: {sample_points: 1000000000}}", ("kips.sample_points", "less than or equal to 256")),
        ("profiles: {las: {thresholds: [1, .inf]}}", ("las.thresholds.1", "finite")),
        ("[" * 1_200, ("nested too deeply",)),
        *((text, ("not YAML",)) for text in NO_YAML if text != "a: !!int x"),  # it is refused in Python's words
        (f"a: {LONG_NUMBER}", ("not YAML",)),
        (ALIASES, ("",)),
        (MERGE_KEYS, ("merge keys (<<) are not allowed",)),
        ("x" * 100_000, ("it has 100000 characters; allowed: 32768",)),
        ("profiles: &a {kips: *a}", ("kips.kips is not known",)),
        ("null: 1", ("Keys should be strings",)),
        ("profile: {a: {b: 1}}", ("profile should be a string",)),
        ("rescale: 5", ("rescale should be an object with keys (found 5)",)),
        ("profiles: [kips]", ("profiles should be an object with keys (found a list of 1)",)),
        ("pools: {inference: {}}", ("pools.inference.namespaces is missing",)),
        (
            "autoscaling: {draining: {a b: 1}}",
            ("autoscaling.draining", "'a b' is not the key of a taint such as karpenter.sh/disrupted"),
        ),
        ("autoscaling: {draining: {node.kubernetes.io/not-ready: 1}}", ("says nothing about a removal of the node",)),
        ("autoscaling: {compact: {nodes: 'a b'}}", ("autoscaling.compact.nodes", "'a b' is not a label; allowed")),
        ("autoscaling: {compact: {prices: {a: -1}}}", ("autoscaling.compact.prices.a", "greater than 0")),
        ("autoscaling: {compact: {prices: {a: .nan}}}", ("autoscaling.compact.prices.a",)),
        ("autoscaling: {compact: {headroom: -1}}", ("autoscaling.compact.headroom",)),
        ("autoscaling: {order: {cpu: '-5'}}", ("autoscaling.order.cpu", "is not a quantity")),
        ("autoscaling: {draining: a}", ("autoscaling.draining",)),
        ("autoscaling: {draining: {a: 0}}", ("autoscaling.draining", "greater than or equal to 1")),
        ("autoscaling: {spot: a b=c}", ("autoscaling.spot", "'a b=c' is not a label")),
        (
            "profiles: {kips: {cooldown: 1}}",
            ("kips.cooldown is not known (found 1). Parameters of kips: ", "cooldown_s"),
        ),
        ("profile: fifo\nprofile: kips", ("not YAML: the key 'profile' is given twice", "line 2, column 1")),
        ("rescale: {stop_timeout_s: 1, stop_timeout_s: 2}", ("the key 'stop_timeout_s' is given twice",)),
        ("profile: " + "x" * 10_000, ("profile", "(10000 characters)")),
        ("".join(f"key{i}: 1\n" for i in range(1000)), ("key0 is not known", "and 990 more problems")),
        ("base: &b {x: 1}\nother: {<<: *b}", ("merge keys (<<) are not allowed",)),
    ],
    ids=named,
)
def test_says_what_is_wrong_where_and_what_is_allowed(text: str, said: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        parse_configuration(text)
    for words in said:
        assert words in str(error.value)
    assert not re.search("Input|Extra|valid |Value error|dictionary", str(error.value)), "the library's own words"
    assert len(str(error.value)) < 2_000


def laughs(line: str, levels: int = 40) -> str:
    """A list of ten names of the line before, again and again."""
    return "\n".join(line.format(i, ", ".join([f"*a{i - 1}"] * 10)) for i in range(1, levels))


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [lol]\n" + laughs("a{0}: &a{0} [{1}]"),
        "a0: &a0 [lol]\n" + laughs("a{0}: &a{0} [{1}]") + "\nprofiles: {las: {thresholds: *a39}}\nstatus: *a39",
        "a0: &a0 {x: 1}\n" + laughs("a{0}: &a{0} {{<<: [{1}]}}"),
    ],
)
def test_a_billion_laughs(text: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_configuration(text)
    assert len(str(error.value)) < 2_000


def test_aliases_are_names() -> None:
    """Which cost nothing."""
    found = parse_configuration("rescale: {prepare_timeout_s: &t 60, switch_timeout_s: *t}")
    assert found.rescale.switch_timeout_s == 60


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("lend: none", "Did you mean profiles.elastic.lend"),
        ("interval_s: 3", "Did you mean status.interval_s or profiles."),
        ("stop_timeout_s: 3", "Did you mean rescale.stop_timeout_s?"),
        ("rescale: {profile: kips}", "Did you mean profile?"),
        ("profil: kips", "Did you mean profile?"),
        ("profile: kipps", "Did you mean kips?"),
        ("profiles: {elastc: {}}", "Did you mean elastic?"),
        ("profiles: {elastic: {lnd: none}}", "Did you mean lend?"),
        (
            "autoscaling: {compact: {node: a}}",
            "allowed: nodes, after_s, every_s, forget_s, headroom, prices. Did you mean nodes?",
        ),
        ("autoscaling: {compact: {when: never}}", "Did you mean autoscaling.order.when?"),
        ("order: {when: never}", "Did you mean autoscaling.order"),
        ("autoscaling: {nodes: a}", "Did you mean autoscaling.compact.nodes?"),
        ("pools: {a: {namespaces: [b], headrom: 1}}", "pools.a.headrom is not known; allowed: namespaces, headroom"),
        (
            "profiles: {elastic: {teams: {named: {a: {wieght: 2}}}}}",
            "a.wieght is not known; allowed: weight, guarantee, limit, namespaces. Did you mean weight?",
        ),
        ("profiles: {elastic: {teams: {name: {}}}}", "allowed: reclaim, over_priority, named. Did you mean named?"),
    ],
)
def test_a_key_at_the_wrong_place_is_answered_with_the_right_one(text: str, meant: str) -> None:
    with pytest.raises(ValueError, match=re.escape(meant)):
        parse_configuration(text)


@pytest.mark.parametrize(
    ("named_teams", "problem"),
    [
        ("{a: {limit: 0.1, guarantee: 0.4}}", ".named.a: limit, 0.1, must be at least the guarantee, 0.4"),
        (
            "{a: {guarantee: 0.6}, b: {guarantee: 0.6}}",
            ": the guarantees of named add up to 1.2 of the cluster; allowed: at most 1",
        ),
        ("{a: {weight: -1}}", ".named.a.weight should be greater than or equal to 0.001 (found -1)"),
    ],
)
def test_a_problem_within_teams_names_no_other_parameter(named_teams: str, problem: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_configuration(f"profile: elastic\nprofiles: {{elastic: {{lend: none, teams: {{named: {named_teams}}}}}}}")
    assert str(error.value) == f"elastic.teams{problem}"


def test_a_node_has_the_price_of_the_first_selector_that_matches() -> None:
    text = "autoscaling: {compact: {prices: {'karpenter.sh/capacity-type=spot': 0.3, 'pool=a,gpu': 4, pool: 1.5}}}"
    compact = parse_configuration(text).autoscaling.compact
    assert compact.price({"karpenter.sh/capacity-type": "spot", "pool": "a"}) == 0.3
    assert compact.price({"pool": "a", "gpu": "x"}) == 4
    assert compact.price({"pool": "a"}) == 1.5
    assert compact.price({}) == 0
    assert selects(compact.nodes, {"karpenter.sh/nodepool": "x"})


@pytest.mark.parametrize("times", [parse_configuration("").autoscaling.compact.times, NodeCompaction()])
def test_a_node_is_left_for_longer_than_the_cluster_autoscaler_needs(times: CompactionTimes | NodeCompaction) -> None:
    """By its defaults it looks at a node with pods every 5 minutes, and removes it 10 minutes after it has seen it
    empty. Jobs need up to prepare_timeout_s to leave."""
    recheck_s, unneeded_s = 300.0, 600.0
    assert times.forget_s > RescaleLimits().prepare_timeout_s + recheck_s + unneeded_s
    assert not selects("", {"a": "b"})
