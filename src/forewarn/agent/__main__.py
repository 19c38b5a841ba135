"""python -m forewarn.agent: the agent's command line."""

from __future__ import annotations

import sys

from forewarn.agent.command.line import main

sys.exit(main())
