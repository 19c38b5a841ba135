"""forewarn verify: hold any server that claims the contract to every rule of it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.cli.output import console, print_json, print_table
from forewarn.core.durations import parse_duration
from forewarn.errors import BadOption, Invalid, NotPermitted
from forewarn.verify.check import SECTIONS, Mark
from forewarn.verify.endpoint import Endpoint
from forewarn.verify.runner import CheckOutcome, Result, as_junit, chosen, counts, describe, run
from forewarn.verify.runner import as_json as run_as_json
from forewarn.verify.session import Hooks, Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.verify.check import Check

_LONGEST_TIMEOUT_SECONDS = 600


@click.command()
@click.argument("url", required=False)
@click.option("--schedule-command", metavar="CMD", default="", help="Makes an event of type $FOREWARN_EVENT_TYPE.")
@click.option("--cancel-command", metavar="CMD", default="", help="Withdraws the event $FOREWARN_EVENT_ID.")
@click.option("--advance-command", metavar="CMD", default="", help="Moves the server's time on by $FOREWARN_SECONDS.")
@click.option("--other", metavar="URL", help="The endpoint as another VM of the same group sees it.")
@click.option("--outside", metavar="URL", help="The endpoint as a VM outside of the group sees it.")
@click.option("--vm-name", metavar="NAME", default="", help="The VM that URL belongs to; default: what it says itself.")
@click.option("--patience", metavar="LENGTH", default="0s", help="How long to wait for time to pass.  [default: 0s]")
@click.option("--timeout", metavar="LENGTH", default="10s", help="How long an answer may take.  [default: 10s]")
@click.option("--marks", metavar="MARKS", default=",".join(Mark), help="Only rules so marked.  [default: all three]")
@click.option("--only", metavar="PATTERN", multiple=True, help="Only checks with such a name; may be repeated.")
@click.option("--junit", metavar="FILE", help="Also write the results there, as JUnit has them.")
@click.option("--list", "only_list", is_flag=True, help="List the checks, and ask nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def command(
    url: str | None,
    schedule_command: str,
    cancel_command: str,
    advance_command: str,
    other: str | None,
    outside: str | None,
    vm_name: str,
    patience: str,
    timeout: str,
    marks: str,
    only: tuple[str, ...],
    junit: str | None,
    only_list: bool,
    as_json: bool,
) -> None:
    """Hold the server at URL to the contract of Scheduled Events, rule by rule.

    For servers under test: it sends bad requests, has events made, approves them, and moves time. The commands are run
    by the shell. Exit code 0: all checks that were made have passed; 1: some have failed.

    \b
    Example:
      forewarn verify http://127.0.0.1:8169
      forewarn verify --list
    """
    checks = chosen(only, _marks(marks))
    if only_list:
        _print_checks(checks, as_json)
        return
    if url is None:
        raise click.UsageError("Say which server: forewarn verify http://127.0.0.1:8169")
    _check_file(junit)
    seconds = _seconds("--timeout", timeout)
    if not 0 < seconds <= _LONGEST_TIMEOUT_SECONDS:
        raise BadOption(name="--timeout", value=timeout, problem="write more than 0s and at most 10m.")
    session = Session(
        Endpoint(url, seconds),
        Hooks(schedule_command, cancel_command, advance_command),
        other=None if other is None else Endpoint(other, seconds),
        outside=None if outside is None else Endpoint(outside, seconds),
        vm=vm_name,
        patience_seconds=_seconds("--patience", patience),
    )
    for place in (session.here, session.other, session.outside):
        if place is not None:
            place.reach()
    outcomes: list[CheckOutcome] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a command that runs must not stay behind
    interrupted = False
    try:
        _gather(run(checks, session), outcomes, quiet=as_json)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print_json(run_as_json(url, outcomes))
    else:
        _print_outcomes(outcomes)
    if interrupted:
        click.echo(f"forewarn: interrupted; {len(checks) - len(outcomes)} checks were not made.", err=True)
    if junit is not None:
        _write(junit, as_junit(url, outcomes))
    if interrupted:
        sys.exit(130)
    found = counts(outcomes)
    sys.exit(1 if found[Result.FAILED] or not found[Result.PASSED] else 0)


def _marks(text: str) -> list[Mark]:
    known = ", ".join(Mark)
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found or any(word not in list(Mark) for word in found):
        raise BadOption(name="--marks", value=text, problem=f"write one or more of {known}, separated by commas.")
    return [Mark(word) for word in found]


def _seconds(name: str, text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except Invalid as error:
        raise BadOption(name=name, value=text, problem=str(error)) from error


def _check_file(path: str | None) -> None:
    """Say that nothing can be written there before the run, not after it."""
    if path is None:
        return
    try:
        folder, place = Path(path).is_dir(), Path(path).absolute().parent.is_dir()
    except OSError as error:
        raise BadOption(name="--junit", value=path, problem=f"{error.strerror}. Name a file.") from error
    if folder:
        raise BadOption(name="--junit", value=path, problem="it is a folder. Name a file.")
    if not place:
        raise BadOption(name="--junit", value=path, problem="its folder does not exist. Create the folder first.")


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise NotPermitted(action="write", path=path, problem=error.strerror, flag="--junit") from error


def _gather(found: Iterable[CheckOutcome], outcomes: list[CheckOutcome], *, quiet: bool) -> None:
    """Collect the outcomes as they come; who waits at a terminal sees meanwhile which check is under way."""
    lively = not quiet and sys.stderr.isatty()
    try:
        for outcome in found:
            outcomes.append(outcome)
            if lively:
                click.echo(f"\r{len(outcomes)} {outcome.check.name:<60}", nl=False, err=True)
    finally:
        if lively:
            click.echo(f"\r{'':<70}\r", nl=False, err=True)


def _print_checks(checks: list[Check], as_json: bool) -> None:
    if as_json:
        print_json({"checks": [describe(check) for check in checks]})
        return
    rows = ((check.name, check.mark, check.rule, ", ".join(check.needs)) for check in checks)
    print_table(("check", "mark", "rule", "needs"), rows, "No check fits.")


def _print_outcomes(outcomes: list[CheckOutcome]) -> None:
    for section, title in SECTIONS.items():
        inside = [outcome for outcome in outcomes if outcome.check.section == section]
        if inside:
            click.echo(f"\n{section}. {title}")
            rows = ((outcome.check.name, outcome.check.mark, outcome.result, outcome.reason) for outcome in inside)
            print_table(("check", "mark", "result", ""), rows, "")
        for outcome in inside:
            if outcome.result is Result.FAILED:
                _print_failure(outcome)
    found = counts(outcomes)
    click.echo(f"\n{', '.join(f'{count} {result}' for result, count in found.items())}.")
    if outcomes and not found[Result.PASSED] and not found[Result.FAILED]:
        click.echo("No check could be made: each says above what it needs.")


def _print_failure(outcome: CheckOutcome) -> None:
    lines = {
        "rule": outcome.check.rule,
        "sent": outcome.sent,
        "came": outcome.came,
        "right": outcome.right,
    }
    console().print(f"\n{outcome.check.name} ({outcome.check.mark})")
    for name, text in lines.items():
        if text:
            printable = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
            console().print(f"  {name:<6} {printable}")
