"""What a user can type or meet is in the docs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import click

from forewarn import errors
from forewarn.agent.cli.main import COMMANDS, parser_of
from forewarn.agent.metrics import METRICS
from forewarn.agent.status_server import PAGES
from forewarn.cli import NOUNS, root
from forewarn.core.durations import format_duration
from forewarn.core.faults import FAULTS
from forewarn.errors import EXIT_CODES
from forewarn.settings import SETTINGS
from forewarn.verify.check import SECTIONS
from forewarn.verify.runner import CHECKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CLI = (DOCS / "reference" / "cli.md").read_text()
AGENT_REFERENCE = (DOCS / "reference" / "agent.md").read_text()


def report(missing: list[str]) -> str:
    return "\n".join([f"{len(missing)} missing or wrong:", *missing])


def rows(page: str, first_cell: str) -> list[list[str]]:
    """The cells of each table row whose first cell is this one, in backquotes."""
    return [line.split(" | ") for line in page.splitlines() if line.startswith(f"| `{first_cell}` |")]


def commands() -> dict[str, click.Command]:
    """Every command by what is typed."""
    context = click.Context(root)
    found: dict[str, click.Command] = {}
    for noun in NOUNS:
        command = root.get_command(context, noun)
        assert command is not None
        if noun == "agent":
            continue  # it has a command line of its own; see below
        if isinstance(command, click.Group):
            found |= {f"{noun} {name}": verb for name, verb in command.commands.items()}
        else:
            found[noun] = command
    return found


def test_every_command_is_in_the_reference_and_its_help_shows_an_example() -> None:
    missing: list[str] = []
    for typed, command in commands().items():
        if f"# forewarn {typed}\n" not in CLI:
            missing.append(f"docs/reference/cli.md: forewarn {typed}")
        if f"forewarn {typed}" not in (command.help or "").partition("Example")[2]:
            missing.append(f"forewarn {typed} --help: an example")
        if typed not in ("up", "completion", "install", "uninstall") and not any(
            "--json" in parameter.opts for parameter in command.params
        ):
            missing.append(f"forewarn {typed}: --json")
    assert not missing, report(missing)


def test_every_command_of_the_agent_is_in_the_reference_and_its_help_shows_an_example() -> None:
    missing: list[str] = []
    for command, summary in COMMANDS.items():
        help_text = parser_of(command).format_help()
        if f"### forewarn agent {command}\n" not in CLI:
            missing.append(f"docs/reference/cli.md: forewarn agent {command}")
        if f"forewarn agent {command}" not in help_text.partition("Example:")[2]:
            missing.append(f"forewarn agent {command} --help: an example")
        if command not in ("run", "install", "uninstall", "bundle") and "--json" not in help_text:
            missing.append(f"forewarn agent {command}: --json")
        if summary not in (parser_of(command).description or ""):
            missing.append(f"forewarn agent {command} --help: {summary}")
    assert not missing, report(missing)


def test_every_option_of_the_agent_is_on_its_page() -> None:
    options = {
        option for command in COMMANDS for action in parser_of(command)._actions for option in action.option_strings
    }
    missing = [option for option in sorted(options - {"-h", "--help"}) if f"`{option}" not in AGENT_REFERENCE]
    assert not missing, report(missing)


def test_every_metric_of_the_agent_is_on_its_page() -> None:
    wanted = [f"| `{metric.name}` | {metric.kind} |" for metric in METRICS.values()]
    missing = [row for row in wanted if f"\n{row}" not in AGENT_REFERENCE]
    assert not missing, report(missing)


def test_every_page_of_the_agent_is_on_its_page() -> None:
    missing = [page for page in PAGES if not rows(AGENT_REFERENCE, page)]
    assert not missing, report(missing)


def test_every_log_entry_of_the_agent_is_on_its_page() -> None:
    calls = [
        node
        for path in (ROOT / "src" / "forewarn" / "agent").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.")
    ]
    names = {ast.literal_eval(call.args[0]) for call in calls}
    assert "agent_started" in names
    section = AGENT_REFERENCE.partition("## The log\n")[2]
    missing = [name for name in sorted(names) if f"`{name}`" not in section]
    assert not missing, report(missing)


def test_the_settings_page_says_when_to_change_each_setting() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    section = page.partition("\n## When to change a setting\n")[2].partition("\n## ")[0]
    assert re.findall(r"^- \*\*`(\w+)`\*\*: (?:Set|Use|Lower|Raise) ", section, re.MULTILINE) == list(SETTINGS)


def test_every_fault_is_on_the_fault_page_with_its_methods() -> None:
    page = (DOCS / "how-to" / "faults.md").read_text()
    wrong: list[str] = []
    for kind in FAULTS.values():
        methods = ", ".join(kind.methods) or "–"
        delay = format_duration(kind.delay) if kind.delay is not None else ""
        match rows(page, kind.name):
            case [[_, shown, *rest]] if shown == methods and delay in " ".join(rest):
                pass
            case found:
                wrong.append(f"{kind.name}: one row with {methods} and {delay or 'any delay'}, not {found}")
    assert not wrong, report(wrong)


def test_every_check_is_on_the_verify_page_with_its_mark_and_rule() -> None:
    page = (DOCS / "how-to" / "verify.md").read_text().replace("\\_", "_")  # the formatter escapes it
    missing: list[str] = []
    for check in CHECKS:
        heading = f"### {check.section}. {SECTIONS[check.section]}"
        section = page.partition(f"{heading}\n")[2].partition("\n### ")[0]
        row = f"| `{check.name}` | {check.mark} | {check.rule} |"
        if f"\n{row}" not in section:
            missing.append(f"{heading}: {row}")
    assert not missing, report(missing)


def test_the_verify_page_has_all_options_and_no_other_checks() -> None:
    page = (DOCS / "how-to" / "verify.md").read_text().replace("\\_", "_")  # the formatter escapes it
    assert page.partition("## The checks")[2].count("\n| `") == len(CHECKS)
    for parameter in commands()["verify"].params:
        assert parameter.name == "url" or f"| `{parameter.opts[0]}" in page


def test_every_error_belongs_to_one_family_and_has_a_message() -> None:
    families = set(EXIT_CODES)
    for found in vars(errors).values():
        if isinstance(found, type) and issubclass(found, errors.ForewarnError) and found is not errors.ForewarnError:
            assert len([family for family in families if issubclass(found, family)]) == 1
            assert found.message


def test_no_link_between_pages_is_broken() -> None:
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "tests" / "README.md"]
    links = [
        (page, number, part.partition(")")[0].partition("#")[0])
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), 1)
        for part in line.split("](")[1:]
    ]
    inside = [(page, number, target) for page, number, target in links if target and "://" not in target]
    assert inside
    broken = [
        f"{page.relative_to(ROOT)}:{number}: {target}"
        for page, number, target in inside
        if not (page.parent / target).exists()
    ]
    assert not broken, report(broken)


def test_every_file_that_the_page_about_tests_names_exists() -> None:
    tests = ROOT / "tests"
    names = re.findall(r"`([\w/*]+(?:\.py|/))`", (tests / "README.md").read_text())
    assert len(names) > 20
    assert not [name for name in names if not list(tests.glob(name))]


def test_every_folder_of_tests_is_on_the_page_about_tests() -> None:
    tests = ROOT / "tests"
    folders = {path.parent.name for path in tests.glob("*/test_*.py")}
    assert folders == set(re.findall(r"^\| `(\w+)/` \|", (tests / "README.md").read_text(), re.MULTILINE))


def texts_in_the_code() -> set[str]:
    """Every text in the code, with … for each value that is filled in."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "{}" for part in parts]
            found.add(re.sub(r"\{[^{}]*\}", "…", "".join(map(str, texts))))
    return found


def test_every_message_on_the_troubleshooting_page_exists() -> None:
    page = (DOCS / "troubleshooting.md").read_text()
    messages = re.findall(r'"([^"]+)"', " ".join(page.split()))
    for table in re.findall(r"\| message \|.*\n\| -- .*\n((?:\|.*\n)+)", page):
        messages += re.findall(r"^\| (.+?) \|", table, re.MULTILINE)
    assert len(messages) > 10
    texts = texts_in_the_code()
    missing = [message for message in messages if not any(message in text for text in texts)]
    assert not missing, report(missing)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them, and those that it sets itself."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'id="([^"]+)"', text))


def test_no_link_to_a_heading_is_broken() -> None:
    broken: list[str] = []
    for page in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
            linked = page.parent / target if target else page
            if "://" not in target and linked.suffix == ".md" and linked.exists() and anchor not in anchors(linked):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken, report(broken)
