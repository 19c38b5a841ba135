#!/usr/bin/env python3
"""The health check of the container image: it fails if the service of the data folder does not respond.

It needs no token. The service has written its address and its certificate to the data folder.
"""

import os
import sys
from http.client import HTTPException

from forewarn.cli.selection import find_service
from forewarn.errors import ForewarnError
from forewarn.system.http_client import opened, origin_of

try:
    service = find_service(None, os.environ.get("FOREWARN_DATA"))
    with opened(origin_of(service.control, service.certificate), "GET", "/healthz", {}, seconds=9) as response:
        if response.status != 200:
            sys.exit(f"{service.control}/healthz returned status {response.status}.")
except (ForewarnError, OSError, HTTPException) as error:
    sys.exit(f"The service does not respond: {error}")
