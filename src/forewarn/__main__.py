"""forewarn, and python -m forewarn: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run what was typed. An agent stays for years: it is started without what the other commands need."""
    if sys.argv[1:2] == ["agent"]:
        from forewarn.agent.cli.main import main as run_agent

        sys.exit(run_agent(sys.argv[2:]))
    from forewarn.cli import main as run

    run()


if __name__ == "__main__":
    main()
