"""forewarn verify: check a Scheduled Events server against the wire contract."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from forewarn.cli.output import print_json, print_table
from forewarn.core.durations import parse_duration
from forewarn.errors import BadOption, Invalid, NotPermitted
from forewarn.system.printable import printable, unguarded
from forewarn.verify.check import SECTIONS, Mark
from forewarn.verify.endpoint import TargetEndpoint
from forewarn.verify.runner import CheckOutcome, CheckResult, as_junit, counts, describe, explain, run, select_checks
from forewarn.verify.runner import as_json as run_as_json
from forewarn.verify.session import HookCommands, Session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.verify.check import Check

_MAX_TIMEOUT_SECONDS = 600


@click.command()
@click.argument("url", required=False)
@click.option(
    "--schedule-command",
    metavar="CMD",
    default="",
    help="Command that schedules an event of type $FOREWARN_EVENT_TYPE.",
)
@click.option("--cancel-command", metavar="CMD", default="", help="Command that cancels the event $FOREWARN_EVENT_ID.")
@click.option(
    "--advance-command",
    metavar="CMD",
    default="",
    help="Command that advances the server's clock by $FOREWARN_SECONDS.",
)
@click.option("--same-group", metavar="URL", help="Endpoint of another VM that shares its document.")
@click.option("--other-group", metavar="URL", help="Endpoint of a VM with another document.")
@click.option(
    "--vm-name", metavar="NAME", default="", help="Name of the VM that URL belongs to.  [default: from the server]"
)
@click.option(
    "--max-wait", metavar="DURATION", default="0s", help="Maximum wait if time cannot be advanced.  [default: 0s]"
)
@click.option("--timeout", metavar="DURATION", default="10s", help="Timeout of a request.  [default: 10s]")
@click.option("--marks", metavar="MARKS", multiple=True, help="Only checks with these marks.  [default: all]")
@click.option("--only", metavar="PATTERN", multiple=True, help="Only checks with a matching name. Can be repeated.")
@click.option("--junit", metavar="FILE", help="Also write the results to FILE as JUnit XML.")
@click.option("--list", "only_list", is_flag=True, help="List the checks; send no request.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    url: str | None,
    schedule_command: str,
    cancel_command: str,
    advance_command: str,
    same_group: str | None,
    other_group: str | None,
    vm_name: str,
    max_wait: str,
    timeout: str,
    marks: tuple[str, ...],
    only: tuple[str, ...],
    junit: str | None,
    only_list: bool,
    as_json: bool,
) -> None:
    """Check a Scheduled Events server against the wire contract.

    Use it only on test servers: it sends invalid requests, schedules and approves events, and advances the clock. A
    shell runs the commands of --schedule-command, --cancel-command and --advance-command. The exit code is 0 if no
    check failed, and 1 if a check failed or no check could run.

    \b
    Examples:
      forewarn verify http://127.0.0.1:8169
      forewarn verify --list
    """
    checks = select_checks(only, _marks(",".join(marks)) if marks else list(Mark))
    if only_list:
        _print_check_list(checks, as_json)
        return
    if url is None:
        raise click.UsageError("Give the URL of the server: forewarn verify http://127.0.0.1:8169")
    _check_file(junit)
    seconds = _seconds("--timeout", timeout)
    if not 0 < seconds <= _MAX_TIMEOUT_SECONDS:
        raise BadOption(name="--timeout", value=timeout, problem="write more than 0s and at most 10m.")
    session = Session(
        TargetEndpoint(url, seconds),
        HookCommands(schedule_command, cancel_command, advance_command),
        same_group=None if same_group is None else TargetEndpoint(same_group, seconds),
        other_group=None if other_group is None else TargetEndpoint(other_group, seconds),
        vm=vm_name,
        max_wait_seconds=_seconds("--max-wait", max_wait),
    )
    for endpoint in session.endpoints:
        endpoint.probe()
    outcomes: list[CheckOutcome] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a running hook command is killed
    interrupted = False
    try:
        _collect(run(checks, session), outcomes, quiet=as_json)
    except KeyboardInterrupt:
        interrupted = True
    outcomes = explain(outcomes)
    if as_json:
        print_json(run_as_json(url, outcomes))
    else:
        _print_outcomes(outcomes)
    if interrupted:
        click.echo(f"forewarn: interrupted; {len(checks) - len(outcomes)} checks did not run.", err=True)
    if junit is not None:
        _write(junit, as_junit(url, outcomes))
    if interrupted:
        sys.exit(130)
    found = counts(outcomes)
    sys.exit(1 if found[CheckResult.FAILED] or not found[CheckResult.PASSED] else 0)


def _marks(text: str) -> list[Mark]:
    known = ", ".join(Mark)
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found or any(word not in list(Mark) for word in found):
        raise BadOption(name="--marks", value=text, problem=f"give one or more of {known}, separated by commas.")
    return [Mark(word) for word in found]


def _seconds(name: str, text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except Invalid as error:
        raise BadOption(name=name, value=text, problem=str(error)) from error


def _check_file(path: str | None) -> None:
    """Report an unusable path before the run, not after it."""
    if path is None:
        return
    try:
        is_folder, has_parent = Path(path).is_dir(), Path(path).absolute().parent.is_dir()
    except OSError as error:
        raise BadOption(name="--junit", value=path, problem=f"{error.strerror}. Name a file.") from error
    if is_folder:
        raise BadOption(name="--junit", value=path, problem="it is a folder. Name a file in it.")
    if not has_parent:
        raise BadOption(name="--junit", value=path, problem="its folder does not exist. Create it first.")


def _write(path: str, content: bytes) -> None:
    try:
        Path(path).write_bytes(content)
    except OSError as error:
        raise NotPermitted(action="write", path=path, problem=error.strerror, flag="--junit") from error


def _collect(found: Iterable[CheckOutcome], outcomes: list[CheckOutcome], *, quiet: bool) -> None:
    """Collect the outcomes. Show the progress on a terminal."""
    interactive = not quiet and sys.stderr.isatty()
    try:
        for outcome in found:
            outcomes.append(outcome)
            if interactive:
                _show_progress(f"\r{len(outcomes)} {outcome.check.name:<60}")
    finally:
        if interactive:
            _show_progress(f"\r{'':<70}\r")


def _show_progress(text: str) -> None:
    """Write over the current line. The text contains nothing from outside."""
    click.echo(text, file=unguarded(sys.stderr), nl=False)


def _print_check_list(checks: list[Check], as_json: bool) -> None:
    if as_json:
        print_json({"checks": [describe(check) for check in checks]})
        return
    rows = ((check.name, check.mark, check.rule, ", ".join(check.needs)) for check in checks)
    print_table(("check", "mark", "rule", "needs"), rows, "No checks.")


def _print_outcomes(outcomes: list[CheckOutcome]) -> None:
    for section, title in SECTIONS.items():
        inside = [outcome for outcome in outcomes if outcome.check.section == section]
        if inside:
            click.echo(f"\n{section}. {title}")
            rows = (
                (outcome.check.name, outcome.check.mark, outcome.result, outcome.reason or outcome.consequence_of)
                for outcome in inside
            )
            print_table(("check", "mark", "result", "reason"), rows, "")
        for outcome in inside:
            if outcome.result is CheckResult.FAILED:
                _print_failure(
                    outcome, [other.check.name for other in outcomes if other.consequence_of == outcome.check.name]
                )
    found = counts(outcomes)
    consequences = found[CheckResult.CONSEQUENCE]
    click.echo(
        f"\n{found[CheckResult.PASSED]} passed, {found[CheckResult.FAILED]} failed"
        + (f" with {consequences} consequence{'s' if consequences != 1 else ''}" if consequences else "")
        + f", {found[CheckResult.SKIPPED]} skipped."
    )
    if outcomes and not found[CheckResult.PASSED] and not found[CheckResult.FAILED]:
        click.echo("No check could run. The reasons above show what each check needs.")


def _print_failure(outcome: CheckOutcome, consequences: list[str]) -> None:
    lines = {
        "rule": outcome.check.rule,
        "request": outcome.request,
        "expected": outcome.expected,
        "actual": outcome.actual,
        "consequences": ", ".join(consequences),
    }
    click.echo(f"\n{outcome.check.name} ({outcome.check.mark})")
    for name, text in lines.items():
        if text:
            click.echo(f"  {name:<12} {printable(text)}")
