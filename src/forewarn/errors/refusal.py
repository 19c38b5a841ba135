"""What is not for this caller, and what must be tried later."""

from __future__ import annotations

from forewarn.errors.families import Forbidden, Unavailable


class BadToken(Forbidden):
    """This needs a valid token: send the header 'Authorization: Bearer <token>'. The first is in the file
    admin-token of the service's data folder; others are made with: forewarn token create"""


class NotForRole(Forbidden):
    """A token of role {role} is not enough here ({what}): that is for {needed}."""


class NoToken(Forbidden):
    """There is no token for the service at {url}: {problem} Name a file that has one with --token-file."""


class NotPermitted(Forbidden):
    """Cannot {action} {path}: {problem}. Make that possible, or choose another with {flag}."""


class ForbiddenTarget(Forbidden):
    """Webhooks may not go to {address}: it is not an address of the public Internet. Whoever runs the service can allow
    it with the setting {setting}, for example {setting} = "10.0.0.0/8"."""

    member = "url"


class FaultsNotAllowed(Forbidden):
    """This service does not fail on purpose. Start it with: forewarn up --allow-faults"""


class StoreFailed(Unavailable):
    """The change could not be written ({problem}). Nothing was changed; try again when the disk has room
    and can be written."""


class StoreDamaged(Unavailable):
    """The database {path} is damaged ({problem}). Nothing was touched. Restore it from a copy, or move it
    away to start anew."""


class StoreNewer(Unavailable):
    """The database {path} was written by a newer Forewarn (schema {found}, this one knows {known}).
    Upgrade Forewarn; nothing was touched."""


class StoreForeign(Unavailable):
    """{path} is not a Forewarn database. Choose another folder with --data; nothing was touched."""


class Stopping(Unavailable):
    """The service is stopping. Try again when it is back."""


class NotRunning(Unavailable):
    """The service does not run. Ask it, its VMs and its events between start() and stop(): within the `with` that
    starts it, or in the test that has the fixture."""


class NotSeen(Unavailable):
    """{vm} has not taken in its document within {limit:g} s of real time: {did}. The clock stands at {now} UTC.
    {remedy}"""


class Abandoned(Unavailable):
    """Whoever waited for VMs to take in their documents has gone."""


class ServiceUnreachable(Unavailable):
    """The service at {url} does not answer ({problem})."""


class EndpointUnreachable(Unavailable):
    """The endpoint at {url} does not answer ({problem}). Start the server under test, or give its right address."""


class TooManyReaders(Unavailable):
    """{most:,} clients follow the feed, and more are not taken. Have one of them pass on what it is told."""


class WebhookFailed(Unavailable):
    """{name} has not taken it: {problem}. Put that right at the receiver, or where the webhook points to."""
