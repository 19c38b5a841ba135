"""forewarn restore: replace the database with a backup."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from forewarn.cli.backup import clean_up_on_signals, data_folder, data_option, server_option
from forewarn.cli.output import names, print_json, when
from forewarn.cli.requests import confirm
from forewarn.clock import SystemClock
from forewarn.core.durations import to_text, to_text_if_any
from forewarn.core.restore import service_time

if TYPE_CHECKING:
    from datetime import datetime

SHOWN_OPERATIONS = 5


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "--cancel-pending",
    is_flag=True,
    help="Cancel the rollouts and the operations that had not started when the backup was written.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@data_option
@server_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(file: str, cancel_pending: bool, yes: bool, data: str | None, server: str | None, as_json: bool) -> None:
    """Replace the database with a backup.

    Stop the service first. The command checks the backup, and adapts it to this version of Forewarn if it is older.
    It keeps the replaced database in the data folder, as forewarn.db.before-restore-1.

    All incarnations grow by at least 1,000,000, and history skips as many rows. So no client sees a number again.

    Operations that were pending in the backup are pending again, even if they were carried out since. Those whose
    time has come start when the service starts. To avoid this, use --cancel-pending.

    \b
    Example:
      forewarn restore /backups/forewarn.db
    """
    from forewarn.assembly import prepare_restore  # the web server takes a while to load

    clean_up_on_signals()
    folder = data_folder(data, server)
    with prepare_restore(folder, file) as restore:
        now = service_time(restore.state, SystemClock().now())
        pending = [_shown(each.operation, each.due_at, now) for each in restore.pending()]
        if not as_json:
            _print_pending(pending, now, cancelled=cancel_pending)
        if restore.replaces:
            confirm(f"Replace the database in {folder}?", yes)
        aside = restore.finish(now, cancel_pending=cancel_pending)
        sequence = restore.state.sequence
    if as_json:
        print_json(
            {
                "data": folder,
                "sequence": sequence,
                "replaced": str(aside) if aside else None,
                "pending_operations": pending,
                "cancelled": cancel_pending,
            }
        )
        return
    click.echo(f"Restored {folder} from {file}, with history up to row {sequence}.")
    if aside is not None:
        click.echo(f"The replaced database is {aside}.")
    click.echo(f"Start the service with: forewarn up{f' --data {shlex.quote(data)}' if data else ''}")


def _shown(operation: Any, due_at: datetime | None, now: datetime) -> dict[str, Any]:
    return {
        "id": operation.id,
        "cause": operation.cause,
        "vms": list(operation.vms),
        "due_at": to_text_if_any(due_at),
        "due": due_at is not None and due_at <= now,
    }


def _print_pending(pending: list[dict[str, Any]], now: datetime, *, cancelled: bool) -> None:
    if not pending:
        return
    due = sum(each["due"] for each in pending)
    if cancelled:
        click.echo(f"Operations that the restore cancels: {len(pending)}.")
    else:
        click.echo(f"Operations that are pending again: {len(pending)}. Due when the service starts: {due}.")
    for each in sorted(pending, key=lambda each: not each["due"])[:SHOWN_OPERATIONS]:
        time = f", due {when(each['due_at'], to_text(now))}" if each["due_at"] else ""
        click.echo(f"  {each['id']}  {each['cause']} of {names(each['vms'])}{time}")
    if len(pending) > SHOWN_OPERATIONS:
        click.echo(f"  and {len(pending) - SHOWN_OPERATIONS} more")
    if not cancelled:
        click.echo("To cancel all of them, use --cancel-pending.")
