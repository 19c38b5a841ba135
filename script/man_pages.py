"""Man pages in the macros of man(7). script/reference fills them, and writes them to docs/man."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """What a page says about one command."""

    typed: str
    """What one types, with the arguments."""
    text: str
    """Paragraphs, with an empty line between two of them."""
    options: dict[str, str]
    """Their descriptions, by what one types."""
    examples: list[str]


def escape(text: str) -> str:
    """Escape a text of one or more lines for roff. A `-` that one types must not become a hyphen."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    plain = plain.replace(",", ",\\:").replace(",\\: ", ", ")  # a line may break after a comma in a long list
    ascii_only = "".join(char if char.isascii() else f"\\[u{ord(char):04X}]" for char in plain)
    return "\n".join("\\&" + line if line.startswith(".") else line for line in ascii_only.split("\n"))


def title(name: str, summary: str) -> list[str]:
    return [
        '.\\" Written by script/reference.',
        f'.TH {escape(name.upper())} 1 "" "Forewarn" "Forewarn manual"',
        ".ad l",
        ".nh",
        ".SH NAME",
        f"{escape(name)} \\- {escape(summary.rstrip('.'))}",
    ]


def definitions(items: dict[str, str]) -> list[str]:
    return [line for name, text in items.items() for line in (".TP", f".B {escape(name)}", escape(text) or "\\&")]


def paragraphs(text: str) -> list[str]:
    return [line for part in text.split("\n\n") for line in (".PP", escape(part))]


def code(lines: list[str]) -> list[str]:
    return [".PP", ".RS 4", ".nf", *map(escape, lines), ".fi", ".RE"]


def described(command: Command) -> list[str]:
    lines = [*paragraphs(command.text), *definitions(command.options)]
    return [*lines, ".PP", "Example:", *code(command.examples)] if command.examples else lines


def noun_page(noun: str, summary: str, commands: list[Command], common: dict[str, str]) -> str:
    """Return the page of a noun with its commands. `common` are options that most commands share."""
    lines = [*title(f"forewarn-{noun}", summary), ".SH SYNOPSIS", ".nf"]
    lines += [f".B {escape(command.typed)}" for command in commands]
    lines += [".fi", ".SH DESCRIPTION"]
    if len(commands) == 1:
        lines += described(commands[0])
    else:
        lines += [*paragraphs(summary), ".SH COMMANDS"]
        for command in commands:
            lines += [f".SS {escape(command.typed)}", *described(command)]
    if common:
        lines += [".SH COMMON OPTIONS", *definitions(common)]
    return "\n".join([*lines, ".SH SEE ALSO", ".BR forewarn (1)", ""])


def root_page(text: str, sections: dict[str, dict[str, str]], exit_codes: dict[str, str]) -> str:
    """Return the page of the program: its commands by section, with their summaries."""
    first, _, rest = text.partition("\n")
    lines = [*title("forewarn", first), ".SH SYNOPSIS", ".B forewarn", "COMMAND [OPTIONS]", ".SH DESCRIPTION"]
    lines += [*paragraphs(rest or first), ".SH COMMANDS"]
    for heading, commands in sections.items():
        lines += [f".SS {escape(heading)}", *definitions(commands)]
    lines += [".SH EXIT STATUS", *definitions(exit_codes), ".SH SEE ALSO"]
    names = [noun for commands in sections.values() for noun in commands]
    lines += [f".BR forewarn\\-{escape(noun)} (1){',' if noun != names[-1] else ''}" for noun in names]
    return "\n".join([*lines, ""])
