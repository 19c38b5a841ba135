"""What a user can type or meet is in the docs."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from forewarn import errors
from forewarn.agent.command.line import VERBS, parser_of
from forewarn.agent.pages.metrics import METRICS, Metric
from forewarn.agent.pages.routes import PAGES
from forewarn.cli import NOUNS, root
from forewarn.core.causes import CAUSES
from forewarn.core.durations import format_duration
from forewarn.core.faults import FAULTS, FaultKind
from forewarn.core.happenings import HAPPENINGS
from forewarn.core.kinds import EVENT_TYPES
from forewarn.errors import EXIT_CODES
from forewarn.settings import SETTINGS
from forewarn.verify.catalogue import CHECKS
from forewarn.verify.check import SECTIONS, Check
from forewarn.wire.versions import API_VERSIONS

ROOT = Path(__file__).parents[2]
CONTROL_API = (ROOT / "docs" / "control-api.md").read_text()
REFERENCE = (ROOT / "docs" / "reference.md").read_text()


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


@pytest.mark.parametrize("typed", commands())
def test_every_command_is_in_the_reference_and_its_help_shows_an_example(typed: str) -> None:
    command = commands()[typed]
    assert f"`forewarn {typed}" in REFERENCE
    assert f"forewarn {typed}" in (command.help or "").partition("Example")[2]
    assert any("--json" in parameter.opts for parameter in command.params) or typed == "up"


@pytest.mark.parametrize("verb", VERBS)
def test_every_command_of_the_agent_is_in_the_reference_and_its_help_shows_an_example(verb: str) -> None:
    help_text = parser_of(verb).format_help()
    assert f"`forewarn agent {verb}" in REFERENCE
    assert f"forewarn agent {verb}" in help_text.partition("Example:")[2]
    assert "--json" in help_text or verb in ("run", "install", "bundle")
    assert VERBS[verb] in (parser_of(verb).description or "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_of_the_agent_is_on_its_page(verb: str) -> None:
    page = (ROOT / "docs" / "agent-running.md").read_text()
    for action in parser_of(verb)._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in page, option


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_every_metric_of_the_agent_is_on_its_page(metric: Metric) -> None:
    page = (ROOT / "docs" / "agent-running.md").read_text()
    assert f"\n| `{metric.name}` | {metric.kind} |" in page


@pytest.mark.parametrize("page", PAGES)
def test_every_page_of_the_agent_is_on_its_page(page: str) -> None:
    assert f"\n| `{page}` |" in (ROOT / "docs" / "agent-running.md").read_text()


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_is_in_the_reference(setting: object) -> None:
    name = getattr(setting, "name", "")
    assert f"| `{name}` |" in REFERENCE
    assert getattr(setting, "flag", "") in REFERENCE
    assert getattr(setting, "variable", "") in REFERENCE


@pytest.mark.parametrize("word", [*EVENT_TYPES, *CAUSES, *(row.version for row in API_VERSIONS)])
def test_every_type_cause_and_version_is_in_the_reference(word: str) -> None:
    assert f"| `{word}` |" in REFERENCE


@pytest.mark.parametrize("word", HAPPENINGS)
def test_everything_that_history_says_is_in_the_page_on_webhooks(word: str) -> None:
    page = (ROOT / "docs" / "webhooks.md").read_text()
    assert f"| `{word}` | `forewarn.{word.replace(' ', '-')}` | {HAPPENINGS[word]} |" in page


@pytest.mark.parametrize("kind", FAULTS.values(), ids=lambda kind: kind.name)
def test_every_fault_is_on_the_page_of_faults_with_what_it_strikes(kind: FaultKind) -> None:
    page = (ROOT / "docs" / "faults.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{kind.name}` |")]
    assert row.split(" | ")[1] == (", ".join(kind.methods) or "–")
    assert kind.delay is None or format_duration(kind.delay) in row


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_is_on_its_page_with_its_mark_and_its_rule(check: Check) -> None:
    page = (ROOT / "docs" / "verify.md").read_text()
    _, _, section = page.partition(f"### {check.section}. {SECTIONS[check.section]}\n")
    assert f"\n| `{check.name}` | {check.mark} | {check.rule} |" in section.partition("\n### ")[0]


def test_the_page_on_verifying_has_no_other_checks_and_all_options() -> None:
    page = (ROOT / "docs" / "verify.md").read_text()
    assert page.partition("## The checks")[2].count("\n| `") == len(CHECKS)
    for parameter in commands()["verify"].params:
        assert parameter.name == "url" or f"| `{parameter.opts[0]}" in page


def routes() -> dict[str, str]:
    """Every request of the control API, with whom its description says it is for."""
    paths = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
    return {
        f"{method.upper()} {path}": operation["description"]
        for path, item in paths.items()
        for method, operation in item.items()
    }


@pytest.mark.parametrize("route", routes())
def test_every_request_is_on_the_page_of_the_api_with_who_may_send_it(route: str) -> None:
    who = routes()[route].removeprefix("For ").removesuffix(".")
    (row,) = [line for line in CONTROL_API.splitlines() if line.startswith(f"| `{route}` |")]
    least = who.replace(" or admin", "").replace("viewer, operator", "viewer").replace(", or tenant", ", tenant")
    assert row.split(" | ")[1] == least


@pytest.mark.parametrize("family", EXIT_CODES, ids=lambda family: family.__name__)
def test_every_family_of_errors_is_in_the_reference_with_its_exit_code(family: type[errors.ForewarnError]) -> None:
    assert f"| `{family.__name__}` | {EXIT_CODES[family]} |" in REFERENCE


def test_every_error_belongs_to_one_family_and_has_a_message() -> None:
    families = set(EXIT_CODES)
    for found in vars(errors).values():
        if isinstance(found, type) and issubclass(found, errors.ForewarnError) and found is not errors.ForewarnError:
            assert len([family for family in families if issubclass(found, family)]) == 1
            assert found.__doc__


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name)
def test_no_link_between_pages_is_broken(page: Path) -> None:
    text = page.read_text()
    for part in text.split("](")[1:]:
        target = part.partition(")")[0].partition("#")[0]
        if target and "://" not in target:
            assert (page.parent / target).exists(), target
