"""python -m forewarn.agent: the agent's command line."""

from __future__ import annotations

import sys

from forewarn.agent.cli.main import main

sys.exit(main())
