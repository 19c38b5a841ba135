"""python -m forewarn.agent, and forewarn-agent of the agent's own package: the agent's command line."""

from __future__ import annotations

import sys

from forewarn.agent.cli.main import main as run_agent


def main() -> None:
    """Run a command of the agent. The word `agent`, as in `forewarn agent run`, may come before it."""
    arguments = sys.argv[1:]
    sys.exit(run_agent(arguments[1:] if arguments[:1] == ["agent"] else arguments))


if __name__ == "__main__":
    main()
