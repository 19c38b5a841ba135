"""forewarn portal: open the web pages of the service in a browser."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from forewarn.cli.output import print_json, service_command
from forewarn.system.addresses import show_host_port

if TYPE_CHECKING:
    from forewarn.cli.client import ControlClient

_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not a listener


def portal_url(control: str, path: str) -> str:
    """Return the URL of a page, from the URL of the control API. A browser cannot open the address 0.0.0.0.

    A certificate is seldom for a loopback address, so with TLS the URL has the name of this machine.
    """
    parts = urlsplit(control)
    local = _ALL_ADDRESSES.get(parts.hostname or "")
    if local is not None:
        host = socket.gethostname() if parts.scheme == "https" else local
        control = f"{parts.scheme}://{show_host_port(host, parts.port or 0)}{parts.path}"
    return control + path


@click.command()
@click.option("--print", "only_print", is_flag=True, help="Print the link; do not open a browser.")
@service_command
def command(only_print: bool, client: ControlClient, as_json: bool) -> None:
    """Open the portal in a browser, signed in with your token.

    The link is valid once, for a minute. If there is no browser, the command prints the link.

    \b
    Example:
      forewarn portal --print
    """
    link = client.post("session", "links")
    url = portal_url(client.url, link["path"])
    if as_json:
        print_json({"url": url, "expires_at": link["expires_at"]})
        return
    if not only_print:
        import webbrowser

        if webbrowser.open(url):
            click.echo("Opened the portal in a browser.")
            return
        click.echo("Found no browser. Open this link within a minute:", err=True)
    click.echo(url)
