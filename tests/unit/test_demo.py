"""What `make demo` says of the live page is so in the manifests."""

from typing import Any

import yaml

from harness import demo, images

MANIFESTS = images.ROOT / "manifests"


def named(path: str, kind: str, name: str) -> dict[str, Any]:
    """The one object of that kind and name in a file."""
    objects = list(yaml.safe_load_all((MANIFESTS / path).read_text()))
    (found,) = [each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name]
    return dict(found)


def test_the_page_is_at_the_port_of_the_service() -> None:
    service = named("components/query-api/service.yaml", "Service", demo.PAGE_SERVICE)
    (port,) = service["spec"]["ports"]
    assert (port["name"], port["port"]) == ("http", 80)
    assert f"/services/{demo.PAGE_SERVICE}:http/proxy/" in demo.how_to_open()


def test_the_token_is_of_an_account_that_may_list_jobs() -> None:
    named("base/rbac.yaml", "ServiceAccount", demo.PAGE_READER)
    binding = named("base/rbac.yaml", "ClusterRoleBinding", demo.PAGE_READER)
    assert [each["name"] for each in binding["subjects"]] == [demo.PAGE_READER]
    rules = named("base/rbac.yaml", "ClusterRole", binding["roleRef"]["name"])["rules"]
    assert any("tfjobs" in rule["resources"] and {"list", "watch"} <= set(rule["verbs"]) for rule in rules)
