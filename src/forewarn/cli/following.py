"""Following the feed from the command line: row after row, also when the service is started again meanwhile."""

from __future__ import annotations

import json
import sys
from http.client import HTTPException
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.history import row_of
from forewarn.delivery.feed import RETRY_MILLISECONDS, Listener
from forewarn.errors import NoService, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.cli.client import Client

SILENCE_SECONDS = 60
"""After how long without a sign of life the connection is given up: there is one every fifteen seconds."""
_NEVER = Event()


def follow(client: Client, query: list[tuple[str, str]], *, as_json: bool) -> None:
    """Print each row as it comes: a line of JSON, or of words."""
    try:
        for data in Follower(client, query).rows():
            click.echo(data if as_json else _line(json.loads(data)))
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read this has seen enough
        sys.stdout = None
        sys.exit(0)


def _line(entry: dict[str, Any]) -> str:
    when, what, about, by, why = row_of(entry)
    return f"{when}  {what:<14}  {about}{' ' if about else ''}by {by}" + (f": {why}" if why else "")


class Follower:
    """Somebody who watches, and how far it has come."""

    def __init__(self, client: Client, query: list[tuple[str, str]]) -> None:
        self._client = client
        self._query = query
        self._position = ""
        self._connected = False
        """Whether it ever was: a service that was never there is an error."""
        self._lost = False

    def rows(self) -> Iterator[str]:
        """The JSON of each row, without an end."""
        while True:
            try:
                yield from self._rows_of_connection()
                problem = "the connection was closed"
            except (Unavailable, NoService) as error:
                if not self._connected:
                    raise
                problem = str(error)
            except (OSError, HTTPException) as error:
                problem = str(error) or type(error).__name__
            if not self._lost:
                click.echo(f"forewarn: cut off ({problem}); going on as soon as it is back.", err=True)
                self._lost = True
            _NEVER.wait(RETRY_MILLISECONDS / 1000)
            self._client = self._client.anew()

    def _rows_of_connection(self) -> Iterator[str]:
        resumes = {"Last-Event-ID": self._position} if self._position else {}
        with self._client.open("GET", ("feed",), self._query, headers=resumes, seconds=SILENCE_SECONDS) as answer:
            self._connected, self._lost = True, False
            listener = Listener()
            for line in answer:
                message = listener.hear(line.decode())
                if message is not None:
                    # Before it is handed on: what whoever is given it does then is its own affair.
                    self._position = message.id
                    if message.data:
                        yield message.data
