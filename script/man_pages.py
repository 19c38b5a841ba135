#!/usr/bin/env python3
"""Writes the man pages, in the macros of man(7), to a folder. script/release puts them into the packages.

Usage: .venv/bin/python script/man_pages.py FOLDER
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import NamedTuple

from command_tables import agent_examples, agent_options, commands, common_options, help_parts, options_of, usage

from forewarn.agent.cli.main import COMMANDS, parser_of
from forewarn.cli import NOUNS, root
from forewarn.cli import SECTIONS as NOUN_SECTIONS
from forewarn.errors import EXIT_CODES


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
        '.\\" Written by script/man_pages.py.',
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
    for heading, nouns in sections.items():
        lines += [f".SS {escape(heading)}", *definitions(nouns)]
    lines += [".SH EXIT STATUS", *definitions(exit_codes), ".SH SEE ALSO"]
    names = [noun for nouns in sections.values() for noun in nouns]
    lines += [f".BR forewarn\\-{escape(noun)} (1){',' if noun != names[-1] else ''}" for noun in names]
    return "\n".join([*lines, ""])


def man_pages() -> dict[str, str]:
    """The text of each man page, by the name of its file."""
    about = inspect.cleandoc((root.help or "").replace("\b", ""))
    exit_codes = {"0": "Success.", "1": "A scenario did not meet an expectation."}
    exit_codes |= {str(number): f"{family.message.partition(':')[0]}." for family, number in EXIT_CODES.items()}
    pages = {"forewarn.1": root_page(about, NOUN_SECTIONS, exit_codes)}
    common = common_options()
    for noun, summary in NOUNS.items():
        shown, shared = [], {}
        for typed, command in commands().items():
            if typed.partition(" ")[0] == noun:
                options = options_of(command)
                own = (
                    options
                    if typed == "up"
                    else {name: help_text for name, help_text in options.items() if name not in common}
                )
                shared |= {} if typed == "up" else {name: common[name] for name in options if name in common}
                help_text, examples = help_parts(command)
                shown.append(Command(f"forewarn {typed} {usage(command)}", help_text, own, examples))
        if noun == "agent":
            for verb in COMMANDS:
                parser = parser_of(verb)
                help_text = " ".join((parser.description or "").split())
                typed = f"forewarn agent {verb} [OPTIONS]"
                shown.append(Command(typed, help_text, agent_options(parser), agent_examples(parser)))
        pages[f"forewarn-{noun}.1"] = noun_page(noun, summary, shown, shared)
    return pages


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in man_pages().items():
        (folder / name).write_text(text)
