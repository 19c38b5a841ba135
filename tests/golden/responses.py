"""The list of requests and responses. Tests check the service against it; docs/explanation/fidelity.md shows it."""

from __future__ import annotations

from golden.responses_approval import REFUSED, TAKEN
from golden.responses_other import INSTANCE, ORDER, PATHS, STRANGERS
from golden.responses_poll import DOCUMENTS, HEADER, TAGS, VERSIONS, WAITS

ANSWERS = (*DOCUMENTS, *VERSIONS, *HEADER, *TAGS, *WAITS, *TAKEN, *REFUSED, *PATHS, *STRANGERS, *ORDER, *INSTANCE)
