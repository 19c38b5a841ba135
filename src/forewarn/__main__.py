"""Entry point of `forewarn` and `python -m forewarn`."""

from __future__ import annotations

import sys
from contextlib import suppress

from forewarn import __version__
from forewarn.system.standard_streams import open_missing_streams


def main() -> None:
    """Run the command line. An agent runs for years: do not load what only the other commands need."""
    open_missing_streams()
    if sys.argv[1:] == ["--version"]:  # without the command line, which takes longer to load than to run
        with suppress(OSError):  # the command line reports the error
            sys.stdout.write(f"forewarn, version {__version__}\n")
            sys.stdout.flush()
            return
    if sys.argv[1:2] == ["agent"]:
        from forewarn.agent.cli.main import main as run_agent

        sys.exit(run_agent(sys.argv[2:]))
    from forewarn.cli import main as run

    run()


if __name__ == "__main__":
    main()
