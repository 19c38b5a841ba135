"""kill -9 again and again, with a receiver that fails, hangs, resets, redirects and is well in turn.

Nothing is lost: every row of history arrives. Nothing comes twice, but for what was on its way at a kill, and that
with the same id. All rows come in their order.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from depth import amount
from forewarn.testing import ServiceProcess
from webhook_receiver import Receiver, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from webhook_receiver import ReceivedRequest

VMS = ("a", "b", "c")
# Each VM is restarted once, so every group has many.
FLEET = "".join(
    f'[[group]]\nname = "{name}"\nkind = "availability-set"\n'
    f'[[vm]]\nname = "{name}"\ngroup = "{name}"\naddress = "127.0.0.{number}"\n'
    f'[[vm]]\nname = "{name}-{{n}}"\ngroup = "{name}"\ncount = 100\n'
    for number, name in enumerate(VMS, 1)
)
ROUNDS = amount(12, 3)
MOST_IN_DOUBT = 8
OPTIONS = ("--webhook-private-networks", "127.0.0.1", "--clock", "virtual")


class QuickRetries(ServiceProcess):
    command = (sys.executable, str(Path(__file__).parents[1] / "quick_retries.py"))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service whose VMs have all polled, so that every operation has a notice."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(FLEET)
    with QuickRetries(tmp_path).start("--fleet", str(fleet), *OPTIONS) as made:
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            made.request(source=source)
        yield made


def moody(luck: random.Random) -> Callable[[ReceivedRequest], Reply]:
    """Takes some rows, and not others: another time, before the pauses get long."""

    def answer(got: ReceivedRequest) -> Reply:
        if int(got.headers["forewarn-attempt"]) > 7:
            return Reply()
        return luck.choice(
            [
                Reply(),
                Reply(204),
                Reply(500),
                Reply(reset=True),
                Reply(302, {"Location": "http://127.0.0.2:9/"}),
            ]
        )

    return answer


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_every_row_arrives_once_and_in_order(service: ServiceProcess, receiver: Receiver, how: str, seed: int) -> None:
    luck = random.Random(seed)  # noqa: S311
    service.control("POST", "/v1/webhooks", {"name": "pager", "url": receiver.url()})
    operations: list[str] = []
    for _ in range(ROUNDS):
        receiver.respond = moody(luck)
        chosen = [f"{luck.choice(VMS)}-{len(operations) + number}" for number in range(luck.randint(1, 6))]
        operations += [service.request_operation("restart", vm)["id"] for vm in chosen]
        enough = len(receiver.got) + luck.randint(1, 15)
        receiver.until(lambda: len(receiver.got) >= enough or receiver_has_all(service, receiver, operations))  # noqa: B023
        if how == "stop":
            assert service.stop() == 0
        else:
            service.kill()
        service.start(*OPTIONS)
    receiver.respond = lambda _: Reply()
    expected = history(service, operations)
    receiver.wait_until_accepted(set(expected))
    assert service.stop() == 0
    assert "Traceback" not in service.output
    taken = [got.id for got in receiver.taken]
    assert set(taken) == set(expected), "every row, and no other"
    assert len({got.event["source"] for got in receiver.got}) == 1
    twice = [number for number in expected if taken.count(number) > 1]
    if how == "stop":
        assert twice == []
    else:
        assert len(taken) - len(expected) <= ROUNDS * MOST_IN_DOUBT
    assert list(dict.fromkeys(taken)) == sorted(expected, key=int), "out of order"


def history(service: ServiceProcess, operations: list[str]) -> dict[str, str]:
    return {
        str(row["sequence"]): row["group"] or ""
        for operation in operations
        for row in service.get_json(f"/v1/history?operation={operation}")["history"]
    }


def receiver_has_all(service: ServiceProcess, receiver: Receiver, operations: list[str]) -> bool:
    return history(service, operations).keys() <= {got.id for got in receiver.taken}


def test_delivery_resumes_after_kills_during_failures(service: ServiceProcess, receiver: Receiver) -> None:
    """Nothing was taken before the kill, so after it each row is taken exactly once."""
    service.control("POST", "/v1/webhooks", {"name": "pager", "url": receiver.url()})
    receiver.respond = lambda _: Reply(503)
    operations: list[str] = []
    for number in range(5):
        operations += [service.request_operation("restart", f"{vm}-{number}")["id"] for vm in VMS]
        enough = len(receiver.got) + 2
        receiver.until(lambda: len(receiver.got) >= enough)  # noqa: B023
        service.kill()
        service.start(*OPTIONS)
    assert len({got.id for got in receiver.got}) == 1, "all others wait for the first"
    service.kill()
    receiver.close()
    service.start(*OPTIONS)
    operations.append(service.request_operation("restart", "a")["id"])
    for _ in range(1000):
        if any("refused" in (row["error"] or "") for row in service.list_all("/v1/webhooks/pager/failures")):
            break
    else:
        pytest.fail("nobody has noticed that the receiver is away")
    service.kill()
    receiver.open()
    receiver.respond = lambda _: Reply()
    service.start(*OPTIONS)
    expected = history(service, operations)
    receiver.wait_until_accepted(set(expected))
    assert service.stop() == 0
    taken = [got.id for got in receiver.taken]
    assert taken == sorted(expected, key=int)
