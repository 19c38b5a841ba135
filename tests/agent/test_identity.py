"""The name of this machine in events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.identity import FROM_ENDPOINT, GIVEN, HOST_NAME, MachineIdentity, choose_identity

ANY = (GIVEN, FROM_ENDPOINT, HOST_NAME)
CERTAIN = (GIVEN, FROM_ENDPOINT)
HOST = (HOST_NAME,)

CASES = [
    # origins, name, what the event lists, which of them it is
    (ANY, "web-1", ["web-0", "web-1"], "web-1"),
    (ANY, "web-1", ["web-10", "web-11", "aweb-1", "web-1x"], None),
    (ANY, "web-10", ["web-1"], None),
    (ANY, "web_1", ["web_10", "web_11"], None),
    (ANY, "web_10", ["web_1", "web_100"], None),
    (ANY, "web1", ["web-1", "web_1", "web01"], None),
    (ANY, "web", ["web_0", "web-0", "webs"], None),
    (ANY, "web-1", [], None),
    (ANY, "", ["", "_", "web-1"], None),
    # the first preview's underscore, on one side only
    (ANY, "web-1", ["_web-1"], "_web-1"),
    (ANY, "web-1", ["__web-1"], None),
    (ANY, "_web-1", ["web-1"], None),
    (ANY, "_web-1", ["_web-1"], "_web-1"),
    (ANY, "web-1", ["_web-1", "web-1"], "web-1"),
    # any letter case, if it is clear who is meant
    (ANY, "web-1", ["WEB-1"], "WEB-1"),
    (ANY, "WEB-1", ["_Web-1"], "_Web-1"),
    (ANY, "Web-1", ["WEB-1", "Web-1", "web-1"], "Web-1"),
    (ANY, "wEB-1", ["WEB-1", "web-1"], None),
    # a cloud service's form, as it is
    (ANY, "Web_IN_0", ["Web_IN_1", "Web_IN_0"], "Web_IN_0"),
    (ANY, "Web_IN_1", ["Web_IN_10", "Web_IN000001"], None),
    # a scale set: the host name against the instance's name
    (HOST, "web00000A", ["web_1", "web_10"], "web_10"),
    (HOST, "web00000a", ["web_10"], "web_10"),
    (HOST, "WEB00000A", ["web_10"], "web_10"),
    (HOST, "web000000", ["web_0"], "web_0"),
    (HOST, "aks-nodepool1-21922338-vmss00001B", ["aks-nodepool1-21922338-vmss_47"], "aks-nodepool1-21922338-vmss_47"),
    (HOST, "web00000A", ["_web_10"], "_web_10"),
    (HOST, "web00000A", ["web_010", "web_A", "web-10", "web10", "we_10", "web0_10"], None),
    (HOST, "web000001", ["web_10", "web_11"], None),
    (HOST, "web00001", ["web_1"], None),
    (HOST, "00000A", ["_10"], None),
    (HOST, "web-00-1", ["web_1"], None),
    (HOST, "web00000A", ["web_10", "web00000A"], "web00000A"),
    (CERTAIN, "web00000A", ["web_10"], None),
    # and the other way round
    (ANY, "web_10", ["web00000A"], "web00000A"),
    (ANY, "web_10", ["WEB00000a"], "WEB00000a"),
    (ANY, "web_10", ["web000010", "web00000B", "web0000A"], None),
    (ANY, "web_10", ["web00000A", "web_10"], "web_10"),
    (ANY, "web_010", ["web00000A"], None),
    (ANY, "web_2176782335", ["webZZZZZZ"], "webZZZZZZ"),
    (ANY, "web_2176782336", ["web000000", "web1000000"], None),
    # a host name with its domain
    (HOST, "web-1.internal.cloudapp.net", ["web-1"], "web-1"),
    (HOST, "web-1.internal.cloudapp.net.", ["WEB-1"], "WEB-1"),
    (HOST, "web-1.internal.cloudapp.net", ["web-10", "web", "internal"], None),
    (HOST, "web-1.internal.cloudapp.net", ["web-1", "web-1.internal.cloudapp.net"], "web-1.internal.cloudapp.net"),
    (HOST, "web00000A.internal.cloudapp.net", ["web_10"], "web_10"),
    (HOST, "web.1", ["web"], None),
    (HOST, "web.1.", ["web"], None),
    (HOST, "web.1", ["web.1"], "web.1"),
    (CERTAIN, "web-1.example", ["web-1"], None),
]


@pytest.mark.parametrize(
    ("origin", "name", "resources", "own"),
    [(origin, name, resources, own) for origins, name, resources, own in CASES for origin in origins],
)
def test_the_own_name_among_the_resources(origin: str, name: str, resources: list[str], own: str | None) -> None:
    assert MachineIdentity(name, origin).listed_as(resources) == own
    assert MachineIdentity(name, origin).listed_as(tuple(reversed(resources))) == own


@given(st.integers(0, 36**6 - 1), st.integers(0, 36**6 - 1), st.sampled_from(["web", "web-1", "web_1", "a0", "x1_IN"]))
def test_instances_of_a_scale_set_are_never_mixed_up(mine: int, other: int, name: str) -> None:
    def host(number: int) -> str:
        digits = ""
        while number:
            number, digit = divmod(number, 36)
            digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
        return name + digits.rjust(6, "0")

    expected = f"{name}_{mine}"
    assert MachineIdentity(host(mine), HOST_NAME).listed_as([expected]) == expected
    if other != mine:
        assert MachineIdentity(host(mine), HOST_NAME).listed_as([f"{name}_{other}", host(other)]) is None
        assert MachineIdentity(expected, FROM_ENDPOINT).listed_as([f"{name}_{other}", host(other)]) is None


@given(st.text(), st.sampled_from(ANY), st.lists(st.text()))
def test_the_matched_name_is_in_the_list(name: str, origin: str, resources: list[str]) -> None:
    own = MachineIdentity(name, origin).listed_as(resources)
    assert own is None or own in resources
    if name and name in resources:
        assert own == name


def test_a_configured_name_is_used_without_a_request() -> None:
    def ask() -> str:
        raise AssertionError("a known name must not be requested")

    assert choose_identity(" web-1 ", ask, "host") == MachineIdentity("web-1", GIVEN)


@pytest.mark.parametrize(
    ("answer", "me"),
    [
        ("web-1\n", MachineIdentity("web-1", FROM_ENDPOINT)),
        ("", MachineIdentity("h", HOST_NAME)),
        (None, MachineIdentity("h", HOST_NAME)),
    ],
)
def test_otherwise_the_endpoint_provides_the_name_or_it_is_the_host_name(
    answer: str | None, me: MachineIdentity
) -> None:
    assert choose_identity("", lambda: answer, "h") == me
