"""What is wrong in itself: fix the request."""

from __future__ import annotations

from forewarn.errors.families import Invalid


class BadDuration(Invalid):
    """{text!r} is not a length of time. Write it like 90s, 14m50s, 2h or 7d."""


class BadSetting(Invalid):
    """{name} = {value!r} (from {origin}) is not valid: {problem}"""


class UnknownSetting(Invalid):
    """{name!r} (in {origin}) is not a setting.{hint}"""


class BadConfigFile(Invalid):
    """The configuration file {path} cannot be read: {problem}"""


class BadFleet(Invalid):
    """{source}:{line}: {key}: {problem}"""


class BadScenario(Invalid):
    """{source}:{line}: {key}: {problem}"""

    member = "text"


class DoesNotFit(Invalid):
    """{problem} Or play it from nothing: forewarn scenario show {name} --fleet > fleet.toml, then
    forewarn up --fleet fleet.toml --data :memory: --clock virtual"""


class UnreadableFile(Invalid):
    """Cannot read {path}: {problem}"""


class BadStartRequests(Invalid):
    """Bad request. {problem} Expected {{"StartRequests": [{{"EventId": "<id>"}}]}}."""


class UnknownStartRequest(Invalid):
    """Bad request. No scheduled event with EventId {event_id} is known here; nothing was approved."""


class BadRequestBody(Invalid):
    """{pointer}: {problem}"""

    pointer: str
    valid: object
    """What would be right there: a list of values, or words; None: the problem says it."""

    def __init__(self, *, pointer: str, problem: str, valid: object = None) -> None:
        self.pointer = pointer
        self.valid = valid
        super().__init__(pointer=pointer or "the body", problem=problem)


class BadParameter(Invalid):
    """{parameter}: {problem}"""

    parameter: str
    valid: object

    def __init__(self, *, parameter: str, problem: str, valid: object) -> None:
        self.parameter = parameter
        self.valid = valid
        super().__init__(parameter=parameter, problem=problem)


class UnknownCause(Invalid):
    """{name!r} is not a cause. Known are: {known}.{hint}"""

    member = "cause"


class UnknownFault(Invalid):
    """{name!r} is not a fault. Known are: {known}.{hint}"""

    member = "kind"


class NothingToDo(Invalid):
    """The operation names no VM. Name at least one."""

    member = "vms"


class TooMany(Invalid):
    """{count:,} {things} are too many for one {what}: at most {most:,}. {remedy}"""


class BadOption(Invalid):
    """{name} {value!r} does not fit: {problem}"""


class BadVerifyURL(Invalid):
    """{url!r} is not the address of a metadata endpoint. Write it like http://127.0.0.1:8169, with or without the
    path /metadata/scheduledevents behind it."""


class NoSuchCheck(Invalid):
    """No check is called {pattern!r}.{hint} See them with: forewarn verify --list"""


class NoCheckLeft(Invalid):
    """No check called {patterns} is marked {marks}: such checks are marked {found}. Give --marks {found}, or another
    name in --only."""


class NoSuchHosts(Invalid):
    """No host matches {pattern!r}.{hint} See them with: forewarn host list"""

    member = "hosts"


class NotSpot(Invalid):
    """{vm} is not a Spot VM (its priority is {priority}): only Spot VMs are evicted, or advised to move on. Give it
    priority = "spot" in the fleet file."""

    member = "vms"


class NoTerminateNotice(Invalid):
    """{group} is no scale set ({kind}): only scale sets are told of deletions."""


class BadCertificate(Invalid):
    """The certificate of the control API cannot be used: {path}: {problem}. Give PEM files with --tls-certificate and
    --tls-key (or one file with both), which this user can read, without a password."""


class CannotListen(Invalid):
    """Cannot listen on {address}: {problem}"""


class NotYetHistory(Invalid):
    """History has no row {after}: the newest is {newest}. Give the number of a row that this service has told, 0 for
    all that is kept, or none for what comes from now on."""


class BadWebhookTarget(Invalid):
    """{url!r} cannot be the target of a webhook: {problem}."""

    member = "url"


class UnreadableDocument(Invalid):
    """This is no document of scheduled events: {problem}."""
