"""forewarn database: move the data of a service, and what to do after a restore of PostgreSQL."""

from __future__ import annotations

import click

from forewarn.cli.output import print_json


@click.group()
def command() -> None:
    """Move the data of a service between SQLite and PostgreSQL, or report a restore of PostgreSQL.

    \b
    Examples:
      forewarn database move --from data --to postgresql://forewarn@db.example.org/forewarn
      forewarn database restored --database postgresql://forewarn@db.example.org/forewarn
    """


@command.command()
@click.option("--database", metavar="URL", required=True, help="The URL of the database.")
@click.option("--schema", metavar="NAME", default="forewarn", show_default=True, help="The schema in PostgreSQL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def restored(database: str, schema: str, as_json: bool) -> None:
    """Report that PostgreSQL was restored from a backup, so that no client sees a number twice.

    The service notices most restores by itself. Use the command if its log has no database_replaced after a restore.
    The node that leads, or the next one that does, skips 1,000,000 incarnations and numbers of history. All nodes load
    the state again. To use the command once too often does no harm.

    \b
    Example:
      forewarn database restored --database postgresql://forewarn@db.example.org/forewarn
    """
    from forewarn.assembly import report_restore  # the web server takes a while to load

    place = report_restore(database, schema)
    if as_json:
        print_json({"database": place, "schema": schema})
        return
    click.echo(f"Reported that the schema {schema} of {place} was restored. The node that leads skips numbers.")


@command.command()
@click.option("--from", "source", metavar="PLACE", required=True, help="A data folder, or the URL of a database.")
@click.option("--to", "target", metavar="PLACE", required=True, help="A data folder, or the URL of a database.")
@click.option("--schema", metavar="NAME", default="forewarn", show_default=True, help="The schema in PostgreSQL.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def move(source: str, target: str, schema: str, as_json: bool) -> None:
    """Copy all data to an empty store, and compare every row.

    Stop the service first. The data at the old place stays as it is. Clients see the same incarnations and history.

    \b
    Example:
      forewarn database move --from data --to postgresql://forewarn@db.example.org/forewarn
    """
    from forewarn.assembly import move_database  # the web server takes a while to load

    counts = move_database(source, target, schema)
    if as_json:
        print_json({"rows": counts})
        return
    click.echo(f"Copied {sum(counts.values()):,} rows, and compared them:")
    for name, count in counts.items():
        if count:
            click.echo(f"  {name.replace('kept_answer', 'response').replace('_', ' '):<12} {count:>8,}")
