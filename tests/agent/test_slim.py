"""An agent without TLS in memory, and with it as soon as somebody needs it."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from forewarn.agent.cli.run import defer_tls
defer_tls()
import http.client
from forewarn.agent.client import Client
assert "ssl" not in sys.modules
plain, problem = http.client.HTTPConnection, http.client.HTTPException
{need}
assert "ssl" in sys.modules
assert http.client.HTTPConnection is plain and http.client.HTTPException is problem
assert http.client.HTTPSConnection("localhost").default_port == 443
try:
    http.client.nothing_of_the_kind
except AttributeError as error:
    assert "nothing_of_the_kind" in str(error)
"""


@pytest.mark.parametrize(
    "need",
    [
        "import urllib.request; assert hasattr(urllib.request, 'HTTPSHandler')",
        "from http.client import HTTPSConnection",
        "http.client.HTTPSConnection",
    ],
)
def test_tls_is_there_for_whoever_asks_for_it(need: str) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM.format(need=need)], check=True, timeout=60)


def test_a_program_that_has_it_keeps_it() -> None:
    program = (
        "import http.client; from forewarn.agent.cli.run import defer_tls; defer_tls(); http.client.HTTPSConnection"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
