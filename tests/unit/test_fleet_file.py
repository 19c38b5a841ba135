"""The fleet file: its keys, and errors with line and key."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.fleet import VM, Fleet, Group, GroupKind, Host, eviction_policy
from forewarn.core.placement import UNPLACED, find_clashes, spread_domains
from forewarn.errors import BadFleet
from forewarn.files.fleet_file import parse_fleet
from forewarn.files.toml_reader import KeyPath, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = """\
[[group]]
name = "web"
kind = "availability-set"      # standalone | cloud-service | availability-set | scale-set
update_domains = 5
fault_domains = 2

[[host]]
name = "host-a"

[[vm]]
name = "web-0"                 # as it stands in Resources
group = "web"                  # absent: a scope of its own
host = "host-a"
update_domain = 0
fault_domain = 0
address = "10.0.0.4"           # who calls from here is this VM
hostname = "web0"              # for /metadata/instance osProfile
priority = "regular"           # or "spot"
"""

AVAILABILITY_SET = '[[group]]\nname = "web"\nkind = "availability-set"\n'
SCALE_SET = '[[group]]\nname = "web"\nkind = "scale-set"\n'
CLOUD_SERVICE = '[[group]]\nname = "shop"\nkind = "cloud-service"\n'
STANDALONE = '[[group]]\nname = "one"\nkind = "standalone"\n'
HOSTS = '[[host]]\nname = "a"\n[[host]]\nname = "b"\n'


def vms_of(text: str) -> list[VM]:
    return list(parse_fleet(text, "fleet.toml").vms.values())


def error_in(text: str) -> BadFleet:
    with pytest.raises(BadFleet) as caught:
        parse_fleet(text, "fleet.toml")
    return caught.value


# --- What a file declares -------------------------------------------------------------------------


def test_the_example() -> None:
    fleet = parse_fleet(EXAMPLE, "fleet.toml")
    assert fleet.groups == {"web": Group("web", GroupKind.AVAILABILITY_SET, 5, 2)}
    assert fleet.hosts == {"host-a": Host("host-a")}
    assert fleet.vms == {"web-0": VM("web-0", "web", "host-a", 0, 0, "10.0.0.4", hostname="web0", priority="regular")}


def test_a_bare_name_is_a_standalone_vm_on_a_host_of_its_own() -> None:
    assert vms_of('[[vm]]\nname = "solo"') == [VM("solo", "solo", "solo-host", 0, 0, hostname="solo")]


def test_every_key_of_a_vm() -> None:
    text = """
        [[vm]]
        name = "solo"
        address = "10.0.0.4"
        listen = "127.0.0.1:9000"
        priority = "spot"
        eviction_policy = "delete"
        size = "Standard_D2s_v5"
        zone = "1"
        tags = {env = "prod", "cost.centre" = "7"}
        auto_approve = ["reboot", "redeploy", "reboot"]
        os = "windows"
        location = "westeurope"
        user_data = "größe\\n"
        custom_data = "#cloud-config"
        public_keys = ["ssh-ed25519 AAAA ops", "ssh-rsa 0"]
    """
    assert vms_of(text) == [
        VM(
            "solo",
            "solo",
            "solo-host",
            address="10.0.0.4",
            listen="127.0.0.1:9000",
            hostname="solo",
            priority="spot",
            size="Standard_D2s_v5",
            zone="1",
            tags=(("env", "prod"), ("cost.centre", "7")),
            auto_approve=("reboot", "redeploy"),
            os="windows",
            location="westeurope",
            user_data="größe\n",
            custom_data="#cloud-config",
            public_keys=("ssh-ed25519 AAAA ops", "ssh-rsa 0"),
            eviction_policy="delete",
        )
    ]


def test_a_terminate_notice_of_a_single_vm() -> None:
    text = (
        SOLO
        + 'terminate_notice = "PT10M"\n'
        + STANDALONE
        + 'terminate_notice = "5m"\n[[vm]]\nname = "a"\ngroup = "one"\n'
    )
    fleet = parse_fleet(text, "fleet.toml")
    assert fleet.group("solo").terminate_notice == timedelta(minutes=10)
    assert fleet.group("one").terminate_notice == timedelta(minutes=5)


def test_the_eviction_policy_of_a_vm_overrides_that_of_its_set() -> None:
    of_set = '[[group]]\nname = "s"\nkind = "scale-set"\neviction_policy = "delete"\n'
    vms = '[[vm]]\ngroup = "s"\nname = "s_{n}"\npriority = "spot"\n'
    text = of_set + vms.replace("{n}", "0") + vms.replace("{n}", "1") + 'eviction_policy = "deallocate"\n'
    text += '[[vm]]\ngroup = "s"\nname = "s_2"\n' + '[[vm]]\nname = "alone"\npriority = "spot"\n'
    fleet = parse_fleet(text, "fleet.toml")
    found = {vm.name: eviction_policy(vm, fleet.group(vm.group)) for vm in fleet.vms.values()}
    assert found == {"s_0": "delete", "s_1": "deallocate", "s_2": "", "alone": "deallocate"}


def test_a_standalone_group_can_have_one_vm() -> None:
    fleet = parse_fleet(STANDALONE + '[[vm]]\nname = "only"\ngroup = "one"\n', "fleet.toml")
    assert fleet.members("one") == ("only",)
    assert fleet.vms["only"][3:5] == (0, 0)


@pytest.mark.parametrize(
    ("kind", "domains"),
    [("standalone", (1, 1)), ("cloud-service", (5, 2)), ("availability-set", (5, 2)), ("scale-set", (5, 5))],
)
def test_default_domains_of_a_group(kind: str, domains: tuple[int, int]) -> None:
    text = f'[[group]]\nname = "g"\nkind = "{kind}"\nauto_approve = ["redeploy"]\n[[vm]]\nname = "v"\n'
    assert parse_fleet(text, "fleet.toml").groups["g"] == Group("g", kind, *domains, ("redeploy",))


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("10.0.0.4", "10.0.0.4"),
        ("FD00:0:0:0::4", "fd00::4"),
        ("::ffff:10.0.0.4", "10.0.0.4"),
    ],
)
def test_an_address_is_put_in_its_usual_form(written: str, address: str) -> None:
    assert vms_of(f'[[vm]]\nname = "v"\naddress = "{written}"\n')[0].address == address


@pytest.mark.parametrize(
    ("written", "listen"),
    [
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("[0:0::1]:8000", "[::1]:8000"),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
    ],
)
def test_a_listener_is_put_in_its_usual_form(written: str, listen: str) -> None:
    assert vms_of(f'[[vm]]\nname = "v"\nlisten = "{written}"\n')[0].listen == listen


def test_inline_arrays_are_equivalent_to_headers() -> None:
    assert [vm.name for vm in vms_of('vm = [{name = "a"}, {name = "b"}]')] == ["a", "b"]


# --- Sets -----------------------------------------------------------------------------------------


def test_a_scale_set() -> None:
    text = SCALE_SET + '[[vm]]\ngroup = "web"\ncount = 3\nfirst = 35\naddresses = "10.0.0.4-10.0.0.6"\n'
    assert [(vm.name, vm.address, vm.hostname, vm.host) for vm in vms_of(text)] == [
        ("web_35", "10.0.0.4", "web00000z", "web_35-host"),
        ("web_36", "10.0.0.5", "web000010", "web_36-host"),
        ("web_37", "10.0.0.6", "web000011", "web_37-host"),
    ]


def test_a_scale_set_may_repeat_its_name() -> None:
    text = SCALE_SET + '[[vm]]\nname = "web"\ngroup = "web"\ncount = 2\n'
    assert [vm.name for vm in vms_of(text)] == ["web_0", "web_1"]


def test_single_vms_of_a_scale_set_and_a_cloud_service() -> None:
    text = (
        SCALE_SET
        + CLOUD_SERVICE
        + '[[vm]]\nname = "web_47"\ngroup = "web"\n[[vm]]\nname = "Cart_IN_3"\ngroup = "shop"\n'
    )
    assert [(vm.name, vm.hostname) for vm in vms_of(text)] == [
        ("web_47", "web00001b"),
        ("Cart_IN_3", "Cart_IN_3"),
    ]


def test_two_roles_of_a_cloud_service() -> None:
    text = CLOUD_SERVICE + "".join(f'[[vm]]\nname = "{role}"\ngroup = "shop"\ncount = 2\n' for role in ("Cart", "Till"))
    names = ["Cart_IN_0", "Cart_IN_1", "Till_IN_0", "Till_IN_1"]
    assert [(vm.name, vm.hostname) for vm in vms_of(text)] == [(name, name) for name in names]


def test_a_numbered_availability_set_with_all_that_a_set_may_have() -> None:
    text = (
        AVAILABILITY_SET
        + HOSTS
        + """
        [[vm]]
        name = "web-{n}"
        group = "web"
        count = 3
        first = 9
        hosts = ["b", "a"]
        hostname = "w{n}.local"
        listen = "[::1]:9000-9002"
        size = "small"
        """
    )
    assert [(vm.name, vm.hostname, vm.host, vm.listen, vm.size) for vm in vms_of(text)] == [
        ("web-9", "w9.local", "b", "[::1]:9000", "small"),
        ("web-10", "w10.local", "a", "[::1]:9001", "small"),
        ("web-11", "w11.local", "b", "[::1]:9002", "small"),
    ]


def test_a_set_without_a_group_is_that_many_standalone_vms() -> None:
    vms = vms_of('[[vm]]\nname = "{n}-x"\ncount = 2\nauto_approve = ["reboot"]\n')
    assert [(vm.name, vm.group, vm.host, vm.auto_approve) for vm in vms] == [
        ("0-x", "0-x", "0-x-host", ("reboot",)),
        ("1-x", "1-x", "1-x-host", ("reboot",)),
    ]


@pytest.mark.parametrize(
    ("written", "addresses"),
    [
        ("10.0.0.254 - 10.0.1.9", ["10.0.0.254", "10.0.0.255"]),
        ("10.0.0.255", ["10.0.0.255", "10.0.1.0"]),
        ("10.1.0.0/24", ["10.1.0.1", "10.1.0.2"]),
        ("10.1.0.0/30", ["10.1.0.1", "10.1.0.2"]),
        ("10.1.0.0/31", ["10.1.0.0", "10.1.0.1"]),
        ("fd00::/126", ["fd00::1", "fd00::2"]),
        ("fd00::/127", ["fd00::", "fd00::1"]),
        ("fd00::ffff", ["fd00::ffff", "fd00::1:0"]),
        ("::ffff:10.1.0.0/120", ["10.1.0.1", "10.1.0.2"]),
    ],
)
def test_addresses_of_a_set(written: str, addresses: list[str]) -> None:
    vms = vms_of(f'[[vm]]\nname = "v{{n}}"\ncount = 2\naddresses = "{written}"\n')
    assert [vm.address for vm in vms] == addresses


def test_the_ports_of_a_set_count_upwards_from_one_port() -> None:
    vms = vms_of('[[vm]]\nname = "v{n}"\ncount = 2\nlisten = "127.0.0.1:9000"\n')
    assert [vm.listen for vm in vms] == ["127.0.0.1:9000", "127.0.0.1:9001"]


def test_vms_share_the_strings_they_have_in_common() -> None:
    single = '[[vm]]\nname = "web-{}"\ngroup = "web"\nhost = "a"\nsize = "Standard_D2s_v5"\nzone = "1"\n'
    first, second = vms_of(AVAILABILITY_SET + HOSTS + single.format(0) + single.format(1))
    for field in ("group", "host", "priority", "size", "zone", "os", "location"):
        assert getattr(first, field) is getattr(second, field)


def test_vms_share_their_long_texts_within_a_set_and_among_entries() -> None:
    keys = 'user_data = "echo 1"\ncustom_data = "echo 2"\npublic_keys = ["ssh-rsa 0"]\n'
    first, second, third = vms_of(f'[[vm]]\nname = "v{{n}}"\ncount = 2\n{keys}[[vm]]\nname = "w"\n{keys}')
    for field in ("user_data", "custom_data", "public_keys"):
        assert getattr(first, field) is getattr(second, field) is getattr(third, field)


def test_user_data_may_have_as_many_bytes_as_azure_allows() -> None:
    text = "ö" * 32_767 + "x"  # 65,535 bytes
    assert vms_of(f'[[vm]]\nname = "v"\nuser_data = "{text}"\n')[0].user_data == text


def test_no_message_contains_a_value_that_can_be_confidential() -> None:
    for line in ('user_data = "SECRET{}"', 'custom_data = "SECRET{}"', 'public_keys = ["SECRET\\n{}"]'):
        with pytest.raises(BadFleet) as rejected:
            parse_fleet(f'[[vm]]\nname = "v"\n{line.format("x" * 65_535)}\n', "fleet.toml")
        assert "SECRET" not in str(rejected.value)


# --- Domains --------------------------------------------------------------------------------------


def domains_of(text: str) -> list[tuple[int, int]]:
    return [(vm.update_domain, vm.fault_domain) for vm in vms_of(text)]


def test_domains_are_spread_in_turn_in_the_order_of_the_file() -> None:
    text = AVAILABILITY_SET + '[[vm]]\nname = "web-{n}"\ngroup = "web"\ncount = 6\n'
    assert domains_of(text) == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (0, 1)]


def test_each_group_spreads_its_domains_separately() -> None:
    text = AVAILABILITY_SET + CLOUD_SERVICE
    for number in range(2):
        text += f'[[vm]]\nname = "web-{number}"\ngroup = "web"\n'
        text += f'[[vm]]\nname = "Cart_IN_{number}"\ngroup = "shop"\n'
        text += f'[[vm]]\nname = "solo-{number}"\n'
    assert domains_of(text) == [(0, 0), (0, 0), (0, 0), (1, 1), (1, 1), (0, 0)]


def test_vms_on_one_host_have_one_domain() -> None:
    text = AVAILABILITY_SET + HOSTS + '[[vm]]\nname = "web-{n}"\ngroup = "web"\ncount = 4\nhosts = ["a", "b"]\n'
    assert domains_of(text) == [(0, 0), (1, 1), (0, 0), (1, 1)]


def test_a_domain_in_a_later_entry_binds_its_host() -> None:
    text = AVAILABILITY_SET + HOSTS
    text += '[[vm]]\nname = "follows"\ngroup = "web"\nhost = "a"\n'
    text += '[[vm]]\nname = "free"\ngroup = "web"\n'
    text += '[[vm]]\nname = "given"\ngroup = "web"\nhost = "a"\nupdate_domain = 3\nfault_domain = 1\n'
    assert domains_of(text) == [(3, 1), (0, 0), (3, 1)]


def test_two_fault_domains_on_one_host_are_allowed() -> None:
    text = AVAILABILITY_SET + HOSTS
    for number in range(2):
        text += f'[[vm]]\nname = "web-{number}"\ngroup = "web"\nhost = "a"\nfault_domain = {number}\n'
    text += '[[vm]]\nname = "web-2"\ngroup = "web"\nhost = "a"\n'
    assert domains_of(text) == [(0, 0), (0, 1), (0, 0)]


def test_a_clash_is_between_given_domains_of_one_group_on_one_host() -> None:
    def vm(name: str, group: str, host: str, domain: int) -> VM:
        return VM(name, group, host, domain, UNPLACED)

    apart = [vm("a", "g", "x", 0), vm("b", "g", "y", 1), vm("c", "h", "x", 1), vm("d", "g", "x", UNPLACED)]
    assert not list(find_clashes(apart))
    assert list(find_clashes([*apart, vm("e", "g", "y", 2)])) == [(1, 4)]


# --- What is wrong, and where ---------------------------------------------------------------------

SOLO = '[[vm]]\nname = "solo"\n'
WEB = '[[vm]]\nname = "web-0"\ngroup = "web"\n'
NUMBERED = '[[vm]]\nname = "v{n}"\ncount = 3\n'

WRONG = {
    # TOML itself
    "syntax": ('[[vm]]\nname = "a\n', 2, "TOML", "column 10"),
    "unfinished": ('[[vm]]\nname = """a\n\n', 2, "TOML", "end of the file"),
    "key twice": (SOLO + 'name = "b"\nhost = "a"\n', 3, "TOML", "overwrite"),
    "too deep": ("a = " + "[" * 5000, 1, "TOML", "nested too deeply"),
    "too many digits": ("a = " + "9" * 5000, 1, "TOML", "too many digits"),
    # Tables
    "empty": ("", 1, "vm", "at least one [[vm]]"),
    "no VM": (AVAILABILITY_SET, 1, "vm", "at least one [[vm]]"),
    "unknown table": (SOLO + "\n[cloud]\n", 4, "cloud", "Tables: group, host, vm."),
    "unknown array of tables": (SOLO + "[[gruop]]\n", 3, "gruop", "Did you mean 'group'?"),
    "single brackets": ('[vm]\nname = "a"\n', 1, "vm", "[[vm]]"),
    "not a table": (SOLO + "[host]\n", 3, "host", "[[host]]"),
    "array of numbers": ("\nvm = [1, 2]\n", 2, "vm", "[[vm]]"),
    # Groups and hosts
    "group without name": (SOLO + '[[group]]\nkind = "scale-set"\n', 3, "group[0].name", "It is missing"),
    "group without kind": (SOLO + '[[group]]\nname = "g"\n', 3, 'group "g".kind', "one of standalone, cloud"),
    "kind": (
        '[[group]]\nname = "g"\nkind = "scaleset"\n',
        3,
        'group "g".kind',
        "Did you mean 'scale-set'?",
    ),
    "empty name of the third group": (
        f'{AVAILABILITY_SET}{SCALE_SET.replace("web", "x")}[[group]]\nname = ""\nkind = "scale-set"\n',
        8,
        "group[2].name",
        "not a valid name",
    ),
    "a group that URLs cannot name": ('[[group]]\nname = "."\nkind = "scale-set"\n', 2, 'group ".".name', "remove it"),
    "a VM that URLs cannot name": ('[[vm]]\nname = ".."\n', 2, 'vm "..".name', "'..' cannot be a name"),
    "group key": (AVAILABILITY_SET + "update_domain = 5\n", 4, 'group "web".update_domain', "'update_domains'"),
    "domains as text": (AVAILABILITY_SET + 'fault_domains = "2"\n', 4, 'group "web".fault_domains', "a string"),
    "domains as truth": (AVAILABILITY_SET + "fault_domains = true\n", 4, 'group "web".fault_domains', "a boolean"),
    "no domains": (AVAILABILITY_SET + "update_domains = 0\n", 4, 'group "web".update_domains', "from 1 to 100"),
    "many domains": (AVAILABILITY_SET + "fault_domains = 11\n", 4, 'group "web".fault_domains', "from 1 to 10"),
    "standalone domains": (STANDALONE + "update_domains = 5\n", 4, 'group "one".update_domains', "Must be 1"),
    "auto_approve word": (
        AVAILABILITY_SET + 'auto_approve = [\n  "reboot",\n  "redploy",\n]\n',
        6,
        'group "web".auto_approve[1]',
        "'redploy' is not one of reboot, redeploy. Did you mean 'redeploy'?",
    ),
    "auto_approve type": (
        AVAILABILITY_SET + 'auto_approve = "reboot"\n',
        4,
        'group "web".auto_approve',
        "an array of strings",
    ),
    "group twice": (AVAILABILITY_SET + SCALE_SET, 5, 'group "web".name', "on line 2"),
    "host twice": (HOSTS + '[[host]]\nname = "a"\n', 6, 'host "a".name', "on line 2"),
    "host key": ('[[host]]\nname = "a"\nzone = "1"\n', 3, 'host "a".zone', "[[host]] has no such key"),
    "host without name": (HOSTS + "[[host]]\n", 5, "host[2].name", "It is missing"),
    "number in a host's name": ('[[host]]\nname = "h{n}"\n', 2, 'host "h{n}".name', "{n} is the number"),
    # One VM
    "vm without name": ("[[vm]]\n", 1, "vm[0].name", 'name = "web-0"'),
    "vm key": (SOLO + 'adress = "10.0.0.4"\n', 3, 'vm "solo".adress', "Did you mean 'address'?"),
    "quoted key": (SOLO + '"a b" = 1\n', 3, "vm \"solo\".'a b'", "no such key"),
    "name as number": ("[[vm]]\nname = 7\n", 2, "vm[0].name", "a string in quotes, not a number"),
    "name with space": ('[[vm]]\nname = "a b"\n', 2, 'vm "a b".name', "white space"),
    "name with control": ('[[vm]]\nname = "a\\u0007"\n', 2, "vm[0].name", "control character"),
    "name too long": (f'[[vm]]\nname = "{"x" * 81}"\n', 2, f'vm "{"x" * 81}".name', "1 to 80"),
    "unknown group": (
        AVAILABILITY_SET + '[[vm]]\nname = "a"\ngroup = "wep"\n',
        6,
        'vm "a".group',
        "No [[group]] is named 'wep'. Did you mean 'web'?",
    ),
    "empty group": (SOLO + 'group = ""\n', 3, 'vm "solo".group', "No [[group]] is named ''"),
    "unknown host": (
        '[[host]]\nname = "host-a"\n' + SOLO + 'host = "host-b"\n',
        5,
        'vm "solo".host',
        "No [[host]] is named 'host-b'. Did you mean 'host-a'?",
    ),
    "update domain": (AVAILABILITY_SET + WEB + "update_domain = 5\n", 7, 'vm "web-0".update_domain', "0 to 4"),
    "fault domain": (AVAILABILITY_SET + WEB + "fault_domain = -1\n", 7, 'vm "web-0".fault_domain', "0 to 1"),
    "domain alone": (SOLO + "update_domain = 1\n", 3, 'vm "solo".update_domain', "Must be 0"),
    "domain as fraction": (SOLO + "update_domain = 0.0\n", 3, 'vm "solo".update_domain', "not a decimal number"),
    "huge domain": (SOLO + f"update_domain = 0x{'f' * 9000}\n", 3, 'vm "solo".update_domain', "Must be 0"),
    "address": (SOLO + 'address = "10.0.0.256"\n', 3, 'vm "solo".address', "like 10.0.0.4 or fd00::4"),
    "no address": (SOLO + 'address = ""\n', 3, 'vm "solo".address', "not an address"),
    "address with zone": (SOLO + 'address = "fe80::1%eth0"\n', 3, 'vm "solo".address', "not an address"),
    "range for one": (SOLO + 'address = "10.0.0.4-10.0.0.5"\n', 3, 'vm "solo".address', "not an address"),
    "listen without port": (SOLO + 'listen = "127.0.0.1"\n', 3, 'vm "solo".listen', '"127.0.0.1:9000"'),
    "listen by name": (SOLO + 'listen = "localhost:80"\n', 3, 'vm "solo".listen', "'localhost' is not an address"),
    "listen bare IPv6": (SOLO + 'listen = "::1:8000"\n', 3, 'vm "solo".listen', '"[::1]:9000"'),
    "port 0": (SOLO + 'listen = "127.0.0.1:0"\n', 3, 'vm "solo".listen', "1 to 65535"),
    "port too high": (SOLO + 'listen = "127.0.0.1:65536"\n', 3, 'vm "solo".listen', "1 to 65535"),
    "ports for one": (SOLO + 'listen = "127.0.0.1:1-2"\n', 3, 'vm "solo".listen', "Add count"),
    "hostname": (SOLO + 'hostname = "a b"\n', 3, 'vm "solo".hostname', "not a valid name"),
    "priority": (SOLO + 'priority = "Spot"\n', 3, 'vm "solo".priority', "Did you mean 'spot'?"),
    "size": (SOLO + "size = 2\n", 3, 'vm "solo".size', "not a number"),
    "zone": (SOLO + "zone = 1979-05-27\n", 3, 'vm "solo".zone', "a date or time"),
    "os": (SOLO + 'os = "Windows"\n', 3, 'vm "solo".os', "Did you mean 'windows'?"),
    "location": (SOLO + 'location = "West Europe"\n', 3, 'vm "solo".location', "not a valid name"),
    "no location": (SOLO + 'location = ""\n', 3, 'vm "solo".location', "not a valid name"),
    "user data type": (SOLO + "user_data = [1]\n", 3, 'vm "solo".user_data', "a string in quotes, not an array"),
    "user data too long": (
        SOLO + f'user_data = "{"ö" * 32_768}"\n',
        3,
        'vm "solo".user_data',
        "Has 65536 bytes in UTF-8. The maximum is 65535.",
    ),
    "custom data too long": (SOLO + f'custom_data = "{"x" * 65_536}"\n', 3, 'vm "solo".custom_data', "65535"),
    "public keys type": (SOLO + 'public_keys = "ssh-rsa 0"\n', 3, 'vm "solo".public_keys', "an array of strings"),
    "public key type": (SOLO + 'public_keys = [\n"ssh-rsa 0",\n7]\n', 5, 'vm "solo".public_keys[1]', "not a number"),
    "public key without data": (SOLO + 'public_keys = ["ssh-rsa"]\n', 3, 'vm "solo".public_keys[0]', "one line"),
    "public key file": (SOLO + 'public_keys = ["~/.ssh/id_rsa.pub"]\n', 3, 'vm "solo".public_keys[0]', "OpenSSH"),
    "public key with lines": (SOLO + 'public_keys = ["ssh-rsa 0\\n"]\n', 3, 'vm "solo".public_keys[0]', "one line"),
    "empty public key": (SOLO + 'public_keys = [""]\n', 3, 'vm "solo".public_keys[0]', "one line"),
    "tags": (SOLO + 'tags = ["a"]\n', 3, 'vm "solo".tags', '{env = "prod"}, not an array'),
    "tag": (SOLO + '[vm.tags]\nenv = "prod"\n"cost.centre" = 7\n', 5, "vm \"solo\".tags.'cost.centre'", "a number"),
    "auto_approve in group": (
        AVAILABILITY_SET + WEB + 'auto_approve = ["reboot"]\n',
        7,
        'vm "web-0".auto_approve',
        "[[group]] 'web'",
    ),
    "image notice": (SCALE_SET + 'os_image_notice = "PT5M"\n', 4, 'group "web".os_image_notice', "Write PT15M."),
    "image notice without a set": (
        '[[group]]\nname = "web"\nkind = "availability-set"\nos_image_notice = "PT15M"\n',
        *(4, 'group "web".os_image_notice', "Only a scale set has an OS image notice."),
    ),
    "scale-set form": (SCALE_SET + WEB, 5, 'vm "web-0".name', "web_0, web_1"),
    "scale-set number": (SCALE_SET + WEB.replace("web-0", "web_07"), 5, 'vm "web_07".name', "web_0, web_1"),
    "cloud service nameless": (CLOUD_SERVICE + '[[vm]]\ngroup = "shop"\n', 4, "vm[0].name", '"Worker_IN_0"'),
    "scale-set nameless": (SCALE_SET + '[[vm]]\ngroup = "web"\n', 4, "vm[0].name", 'name = "web_0"'),
    "cloud-service form": (
        CLOUD_SERVICE + '[[vm]]\nname = "Cart_0"\ngroup = "shop"\n',
        5,
        'vm "Cart_0".name',
        "Worker_IN_0",
    ),
    # Sets
    "addresses for one": (SOLO + 'addresses = "10.0.0.4"\n', 3, 'vm "solo".addresses', "write address"),
    "hosts for one": (SOLO + 'hosts = ["a"]\n', 3, 'vm "solo".hosts', "write host"),
    "first for one": (SOLO + "first = 1\n", 3, 'vm "solo".first', "Add count"),
    "{n} for one": ('[[vm]]\nname = "v{n}"\n', 2, 'vm "v{n}".name', "add count"),
    "{n} in hostname for one": (SOLO + 'hostname = "v{n}"\n', 3, 'vm "solo".hostname', "add count"),
    "address for a set": (NUMBERED + 'address = "10.0.0.4"\n', 4, 'vm "v{n}".address', "Write addresses"),
    "host and hosts": (
        HOSTS + NUMBERED + 'hosts = ["a"]\nhost = "b"\n',
        8,
        'vm "v{n}".hosts',
        "not both",
    ),
    "no hosts": (NUMBERED + "hosts = []\n", 4, 'vm "v{n}".hosts', "at least one"),
    "unknown among hosts": (HOSTS + NUMBERED + 'hosts = [\n"a",\n"c"]\n', 10, 'vm "v{n}".hosts[1]', "'c'"),
    "number among hosts": (NUMBERED + "hosts = [\n1]\n", 5, 'vm "v{n}".hosts[0]', "a string"),
    "count 0": ('[[vm]]\nname = "v{n}"\ncount = 0\n', 3, 'vm "v{n}".count', "from 1 to"),
    "count too large": ('[[vm]]\nname = "v{n}"\ncount = 1000001\n', 3, 'vm "v{n}".count', "to 1000000"),
    "count true": ('[[vm]]\nname = "v{n}"\ncount = true\n', 3, 'vm "v{n}".count', "a boolean"),
    "first below 0": (NUMBERED + "first = -1\n", 4, 'vm "v{n}".first', "from 0 to"),
    "set without {n}": ('[[vm]]\nname = "v"\ncount = 2\n', 2, 'vm "v".name', "{n}"),
    "names too long": (
        f'[[vm]]\ncount = 11\nname = "{"x" * 79}{{n}}"\n',
        3,
        f'vm "{"x" * 79}{{n}}".name',
        "x10' is not a valid name",
    ),
    "scale set of another name": (
        SCALE_SET + '[[vm]]\nname = "web-{n}"\ngroup = "web"\ncount = 2\n',
        5,
        'vm "web-{n}".name',
        "web_0",
    ),
    "role with {n}": (
        CLOUD_SERVICE + '[[vm]]\nname = "Cart_IN_{n}"\ngroup = "shop"\ncount = 2\n',
        5,
        'vm "Cart_IN_{n}".name',
        "only the role",
    ),
    "role empty": (
        CLOUD_SERVICE + '[[vm]]\nname = ""\ngroup = "shop"\ncount = 2\n',
        5,
        "vm[0].name",
        "Write only the role",
    ),
    "role missing": (CLOUD_SERVICE + '[[vm]]\ngroup = "shop"\ncount = 2\n', 4, "vm[0].name", "Write only the role"),
    "too few addresses": (
        NUMBERED + 'addresses = "10.0.0.4-10.0.0.5"\n',
        4,
        'vm "v{n}".addresses',
        "The range has 2 addresses, but 3 VMs need 3",
    ),
    "too small a network": (NUMBERED + 'addresses = "10.0.0.0/30"\n', 4, 'vm "v{n}".addresses', "but 3 VMs need 3"),
    "past the last address": (
        NUMBERED + 'addresses = "255.255.255.254"\n',
        4,
        'vm "v{n}".addresses',
        "but 3 VMs need 3",
    ),
    "range backwards": (NUMBERED + 'addresses = "10.0.0.9-10.0.0.4"\n', 4, 'vm "v{n}".addresses', "lower one"),
    "range of two kinds": (NUMBERED + 'addresses = "10.0.0.9-::1"\n', 4, 'vm "v{n}".addresses', "lower one"),
    "half a range": (NUMBERED + 'addresses = "10.0.0.9-"\n', 4, 'vm "v{n}".addresses', "'' is not an address"),
    "network": (NUMBERED + 'addresses = "10.0.0.4/24"\n', 4, 'vm "v{n}".addresses', "10.1.0.0/24"),
    "too few ports": (NUMBERED + 'listen = "127.0.0.1:1-2"\n', 4, 'vm "v{n}".listen', "The range has 2 ports"),
    "ports backwards": (NUMBERED + 'listen = "127.0.0.1:2-1"\n', 4, 'vm "v{n}".listen', "lower one first"),
    "past the last port": (NUMBERED + 'listen = "127.0.0.1:65534"\n', 4, 'vm "v{n}".listen', "but 3 VMs need 3"),
    # One against the other
    "name twice": (SOLO + SOLO, 4, 'vm "solo".name', 'already used by vm "solo" (line 1)'),
    "name within a set": (NUMBERED + '[[vm]]\nname = "v2"\n', 5, 'vm "v2".name', '"v2" (line 1)'),
    "sets overlap": (
        SCALE_SET + '[[vm]]\ngroup = "web"\ncount = 3\n[[vm]]\ngroup = "web"\ncount = 3\nfirst = 2\n',
        7,
        "vm[1].name",
        "'web_2' is already used by",
    ),
    "address twice": (
        SOLO + 'address = "10.0.0.4"\n[[vm]]\nname = "b"\naddress = "::ffff:10.0.0.4"\n',
        6,
        'vm "b".address',
        "'10.0.0.4' is already used by vm \"solo\" (line 1)",
    ),
    "address twice in a set": (
        SOLO + 'address = "10.0.0.5"\n' + NUMBERED + 'addresses = "10.0.0.4"\n',
        7,
        'vm "v{n}".addresses',
        'vm "solo"',
    ),
    "listen twice": (
        SOLO + 'listen = "[::1]:80"\n[[vm]]\nname = "b"\nlisten = "[0::1]:080"\n',
        6,
        'vm "b".listen',
        'vm "solo"',
    ),
    "vm named like a group": (
        AVAILABILITY_SET + '[[vm]]\nname = "web"\n',
        5,
        'vm "web".name',
        'Write group = "web", or choose another name',
    ),
    "own host declared": (
        '[[host]]\nname = "solo-host"\n' + SOLO,
        3,
        'vm "solo".host',
        "'solo-host'",
    ),
    "eviction policy of a regular VM": (
        SOLO + 'eviction_policy = "delete"\n',
        3,
        'vm "solo".eviction_policy',
        'Only Spot VMs are evicted. Write priority = "spot", or omit it.',
    ),
    "unknown eviction policy": (
        SOLO + 'priority = "spot"\neviction_policy = "stop"\n',
        4,
        'vm "solo".eviction_policy',
        "deallocate, delete",
    ),
    "eviction policy of a set without Spot VMs": (
        '[[group]]\nname = "s"\nkind = "scale-set"\neviction_policy = "delete"\n[[vm]]\ngroup = "s"\ncount = 1\n',
        4,
        'group "s".eviction_policy',
        "the set has none",
    ),
    "eviction policy of an availability set": (
        '[[group]]\nname = "s"\nkind = "availability-set"\neviction_policy = "delete"\n',
        4,
        'group "s".eviction_policy',
        "Only a scale set",
    ),
    "terminate notice in a group": (
        '[[group]]\nname = "s"\nkind = "scale-set"\n[[vm]]\ngroup = "s"\ncount = 1\nterminate_notice = "PT5M"\n',
        7,
        "vm[0].terminate_notice",
        "Write it in [[group]] 's'.",
    ),
    "terminate notice of an availability set": (
        '[[group]]\nname = "s"\nkind = "availability-set"\nterminate_notice = "PT5M"\n',
        4,
        'group "s".terminate_notice',
        "Only scale sets and standalone VMs",
    ),
    "terminate notice of a Spot set": (
        (
            '[[group]]\nname = "s"\nkind = "scale-set"\nterminate_notice = "PT5M"\n'
            '[[vm]]\ngroup = "s"\nname = "s_0"\n[[vm]]\ngroup = "s"\nname = "s_1"\npriority = "spot"\n'
        ),
        11,
        'vm "s_1".priority',
        "Azure offers no terminate notice for Spot VMs, and group 's' has one.",
    ),
    "terminate notice of a Spot VM": (
        SOLO + 'terminate_notice = "PT5M"\npriority = "spot"\n',
        4,
        'vm "solo".priority',
        "Azure offers no terminate notice for Spot VMs, and it has one.",
    ),
    "company": (
        STANDALONE + '[[vm]]\nname = "a"\ngroup = "one"\n[[vm]]\nname = "b"\ngroup = "one"\n',
        9,
        'vm "b".group',
        'already has its VM "a"',
    ),
    "two update domains on one host": (
        AVAILABILITY_SET
        + HOSTS
        + WEB
        + 'update_domain = 1\nhost = "a"\n[[vm]]\nname = "w"\ngroup = "web"\nhost = "a"\nupdate_domain = 0\n',
        17,
        'vm "w".update_domain',
        "Host 'a' already holds update domain 1 of group 'web', with vm \"web-0\"",
    ),
    "mode of an availability set": (
        AVAILABILITY_SET + 'mode = "flexible"\n' + SOLO,
        4,
        'group "web".mode',
        "Only a scale set has a mode. The kind of this group is 'availability-set'.",
    ),
    "unknown visibility": (
        SCALE_SET + 'visibility = "self"\n' + SOLO,
        4,
        'group "web".visibility',
        "'self' is not one of group, own.",
    ),
    "placement group of a vm alone": (
        SOLO + "placement_group = 2\n",
        3,
        'vm "solo".placement_group',
        "Only VMs of a scale set have a placement group. Omit it.",
    ),
    "placement group zero": (
        SCALE_SET + '[[vm]]\nname = "web_0"\ngroup = "web"\nplacement_group = 0\n',
        7,
        'vm "web_0".placement_group',
        "from 1 to 10000",
    ),
    "full placement group": (
        SCALE_SET
        + '[[vm]]\ngroup = "web"\ncount = 60\nplacement_group = 2\n'
        + '[[vm]]\ngroup = "web"\nfirst = 60\ncount = 41\nplacement_group = 2\n',
        12,
        "vm[1].placement_group",
        "Placement group 2 of 'web' has at most 100 VMs, and 'web_100' is one too many. Write another number, or omit",
    ),
    "own name in a uniform set": (
        SCALE_SET + '[[vm]]\nname = "web_1a2b3c4d"\ngroup = "web"\n',
        5,
        'vm "web_1a2b3c4d".name',
        'In a set with mode = "flexible" you choose the names.',
    ),
    "vm named like a placement group": (
        SCALE_SET + '[[vm]]\nname = "web.2"\n',
        5,
        'vm "web.2".name',
        "'web.2' is the name of a placement group of 'web'. Choose another name.",
    ),
    "group named like a placement group": (
        SCALE_SET + '[[group]]\nname = "web.3"\nkind = "availability-set"\n' + SOLO,
        5,
        'group "web.3".name',
        "'web.3' is the name of a placement group of 'web'.",
    ),
    "vm with own visibility named like a placement group": (
        SCALE_SET
        + '[[group]]\nname = "gpu"\nkind = "scale-set"\nmode = "flexible"\nvisibility = "own"\n'
        + '[[vm]]\ngroup = "gpu"\nname = "web.2"\n',
        11,
        'vm "web.2".name',
        "'web.2' is the name of a placement group of 'web'. Choose another name.",
    ),
    "vm with own visibility named like a group": (
        SCALE_SET
        + 'visibility = "own"\n[[group]]\nname = "web_0"\nkind = "cloud-service"\n'
        + '[[vm]]\ngroup = "web"\nname = "web_0"\n',
        10,
        'vm "web_0".name',
        "'web_0' is also the name of a group.",
    ),
}


@pytest.mark.parametrize(("text", "line", "key", "problem"), WRONG.values(), ids=WRONG.keys())
def test_an_error_has_its_line_and_key(text: str, line: int, key: str, problem: str) -> None:
    error = error_in(text)
    # Some of these fleets have no VM, which is a mistake of its own.
    (mistake,) = [found for found in error.mistakes if found.key != "vm"] or error.mistakes
    assert (error.fields["source"], mistake.line, mistake.key) == ("fleet.toml", line, key)
    assert problem in mistake.problem


def test_a_flexible_set_has_the_names_that_the_operator_chooses() -> None:
    flexible = SCALE_SET + 'mode = "flexible"\n'
    named = vms_of(flexible + '[[vm]]\ngroup = "web"\nname = "web_1a2b3c4d"\n')
    assert [(vm.name, vm.hostname) for vm in named] == [("web_1a2b3c4d", "web_1a2b3c4d")]
    counted = vms_of(flexible + '[[vm]]\ngroup = "web"\nname = "worker{n}"\ncount = 2\n')
    assert [vm.name for vm in counted] == ["worker0", "worker1"]


def test_an_error_reads_as_one_line() -> None:
    error = error_in(AVAILABILITY_SET + SOLO + 'group = "wen"\n')
    assert str(error) == "fleet.toml:6: vm \"solo\".group: No [[group]] is named 'wen'. Did you mean 'web'?"


@pytest.mark.parametrize("character", "/\\\"'<>|:*?#&% \t\u00a0\u200b")
def test_characters_that_no_name_has(character: str) -> None:
    error = error_in(f'[[vm]]\nname = "a\\u{ord(character):04x}b"\n')
    assert "is not a valid name" in str(error)


# --- Any fleet at all -----------------------------------------------------------------------------


@st.composite
def vm_entries(draw: st.DrawFn, number: int) -> str:
    """A `[[vm]]` that is often accepted: names seldom repeat, addresses, hosts and domains do."""
    kind = draw(st.sampled_from(["solo", "availability", "scale"]))
    lines = ["[[vm]]"]
    is_set = draw(st.booleans())
    if is_set:
        lines.append(f"count = {draw(st.integers(1, 7))}")
        lines.append(f"first = {number * 10}")
    if kind == "scale":
        lines.append('group = "scale"')
        if not is_set:
            lines.append(f'name = "scale_{number * 10}"')
    else:
        lines.append(f'name = "{kind}-{number}{"-{n}" if is_set else ""}"')
    if kind == "availability":
        lines.append('group = "availability"')
    lines.extend(draw(placements(is_set=is_set)))
    return "\n".join(lines) + "\n"


@st.composite
def placements(draw: st.DrawFn, *, is_set: bool) -> list[str]:
    lines = []
    if draw(st.booleans()):
        hosts = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=3))
        lines.append(f"hosts = {hosts}" if is_set else f'host = "{hosts[0]}"')
    given_domains = draw(st.sets(st.sampled_from(["update_domain", "fault_domain"])))
    lines.extend(f"{key} = {draw(st.integers(0, 2))}" for key in sorted(given_domains))
    if draw(st.booleans()):
        address = f"10.0.{draw(st.integers(0, 60))}.4"
        lines.append(f'addresses = "{address}"' if is_set else f'address = "{address}"')
    return lines


@st.composite
def fleet_texts(draw: st.DrawFn) -> str:
    text = "".join(f'[[host]]\nname = "{host}"\n' for host in "abc")
    for group, kind in (("availability", "availability-set"), ("scale", "scale-set")):
        text += f'[[group]]\nname = "{group}"\nkind = "{kind}"\n'
        text += f"update_domains = {draw(st.integers(1, 4))}\nfault_domains = {draw(st.integers(1, 3))}\n"
    for number in range(draw(st.integers(1, 5))):
        text += draw(vm_entries(number))
    return text


@given(fleet_texts())
def test_any_fleet_is_valid_or_rejected_with_a_line(text: str) -> None:
    try:
        fleet = parse_fleet(text, "fleet.toml")
    except BadFleet as error:
        refusal = error
    else:
        assert_sound(fleet)
        return
    line, key = str(refusal.fields["line"]), str(refusal.fields["key"]).rpartition(".")[2]
    assert text.splitlines()[int(line) - 1].startswith(("[[vm]]", key))


def assert_sound(fleet: Fleet) -> None:
    held: dict[tuple[str, str], set[int]] = defaultdict(set)
    for vm in fleet.vms.values():
        group = fleet.group(vm.group)
        assert 0 <= vm.update_domain < group.update_domains
        assert 0 <= vm.fault_domain < group.fault_domains
        held[vm.group, vm.host].add(vm.update_domain)
    assert all(len(domains) == 1 for domains in held.values())
    addresses = [ip_address(vm.address) for vm in fleet.vms.values() if vm.address]
    assert len(set(addresses)) == len(addresses)


@given(st.lists(st.tuples(st.sampled_from("gh"), st.sampled_from("abcde"), st.integers(UNPLACED, 2)), max_size=30))
def test_spreading_keeps_given_domains_and_one_domain_per_host(wishes: list[tuple[str, str, int]]) -> None:
    vms = [VM(str(number), group, host, domain, UNPLACED) for number, (group, host, domain) in enumerate(wishes)]
    if list(find_clashes(vms)):
        return
    groups = {name: Group(name, GroupKind.SCALE_SET, 3, 2) for name in "gh"}
    spread = spread_domains(vms, groups)
    assert_sound(Fleet(spread, groups.values()))
    for before, after in zip(vms, spread, strict=True):
        assert before.update_domain in {UNPLACED, after.update_domain}


# --- Lines ----------------------------------------------------------------------------------------

# Every number in this text is the line of its key, or of its own where it stands in an array.
# A tilde stands for a single quote, so that TOML's strings of either kind fit into one of Python's.
NUMBERED_LINES = r'''# A comment with a "quote, a [bracket and a {brace
top = 2
"quoted key" = 3 # [[vm]]
~literal.key~ = 4
"esc\u0061ped\"" = 5
dotted.key = 6
dotted . "with spaces" = 7
inline = { a = 8, b = { c = 8, "d" = [8, 8] }, e.f = 8 }
array = [ # opens
  10, # ten, with a ] in it
  [11, 11],

  { x = 13 }, {y = 13},
]

text = """
vm = 1
[[vm]]
name = "not a name" """
after_text = 20
quotes = """"two at the end"""""
after_quotes = 22
literal = ~~~
[[vm]] ~~
\~~~
after_literal = 26
escapes = "a \" # not a comment"
after_escapes = 28
empty = ""
moment = 1979-05-27 07:32:00 # a space within a value
after_moment = 31

three.part.key = 33
[[vm]]
name = 35
  [ vm . tags ] # belongs to the first
  env = 37
[[vm]] # the second
name = 39
  [[vm.disk]]
  size = 41
  [[vm.disk]]
  size = 43
    [vm.disk.cache]
    size = 45
[[ "vm" ]]
name = 47
[other]
name = 49
[other."sub table"]
name = 51
'''.replace("~", "'")


def numbers_in(value: object, path: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers_in(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers_in(inner, (*path, index))
    elif isinstance(value, int):
        yield path, value


@pytest.mark.parametrize(("path", "line"), list(numbers_in(tomllib.loads(NUMBERED_LINES))), ids=str)
def test_line_of_every_key(path: KeyPath, line: int) -> None:
    assert lines_of(NUMBERED_LINES, [path]) == [line]
    assert lines_of(NUMBERED_LINES.replace("\n", "\r\n"), [path]) == [line]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("vm",), 34),
        (("vm", 1), 38),
        (("vm", 1, "absent"), 38),
        (("vm", 1, "disk", 1), 42),
        (("vm", 0, "tags"), 36),
        (("vm", 0, "tags", "absent"), 36),
        (("dotted",), 6),
        (("inline", "b", "absent"), 8),
        (("text",), 16),
        (("absent",), 1),
    ],
)
def test_the_line_of_tables_and_of_missing_keys(path: KeyPath, line: int) -> None:
    assert lines_of(NUMBERED_LINES, [path]) == [line]


def test_nesting_as_deep_as_the_reader_takes_it_is_no_obstacle() -> None:
    text = f"deep = {'[' * 300}{']' * 300}\nafter = 2\n"
    tomllib.loads(text)
    assert lines_of(text, [("after",)]) == [2]


@pytest.mark.parametrize("letter", ["\\u001b", "\\u0007", "\\n", "\\u007f", "\\u009b", "\\u202e", "\\u200b", "\\u2028"])
@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('size = "D2{}"', "size"),
        ('zone = "1{}"', "zone"),
        ('tags = {{ env = "prod{}" }}', "tags.env"),
        ('tags = {{ "en{}v" = "prod" }}', "tags.'en"),
        ('location = "local{}"', "location"),
        ('hostname = "web{}"', "hostname"),
        ('public_keys = ["ssh-ed25519 AAAA ops{}"]', "public_keys[0]"),
    ],
)
def test_shown_text_has_no_control_characters(line: str, key: str, letter: str) -> None:
    error = error_in(f'[[vm]]\nname = "web-0"\n{line.format(letter)}\n')
    assert f'vm "web-0".{key}' in str(error)
    assert error.fields["line"] == 3
    assert str(error).isprintable()


def test_data_for_the_vm_can_have_any_characters() -> None:
    (vm,) = vms_of(
        '[[vm]]\nname = "web-0"\nuser_data = "\\u001b[2J\\n\\u202e"\ntags = { "größe" = "ein Wort, schön" }\n'
    )
    assert (vm.user_data, vm.tags) == ("\x1b[2J\n\u202e", (("größe", "ein Wort, schön"),))
