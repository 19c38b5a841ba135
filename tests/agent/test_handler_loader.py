"""Loading of handlers: built-in, installed, or from a file."""

from __future__ import annotations

import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from agent.jobs import LoneJob, handler_of
from forewarn.agent.handlers.loader import kinds
from forewarn.errors import BadAgentConfig

ROOT = Path(__file__).parents[2]
OWN = """
from forewarn.agent import Handler, HandlerFailed

class Greet(Handler):
    def __init__(self, options):
        options.reject_unknown({"greeting", "kind", "file", "timeout"})
        self.greeting = options.required_text("greeting", "Write some words.")

    def describe(self, action):
        return f"say {self.greeting}"

    def prepare(self, job):
        job.info(self.greeting)

    def undo(self, job):
        raise HandlerFailed(problem="never")
"""


def test_the_built_in_kinds() -> None:
    assert kinds() == ["command", "haproxy", "log", "process", "systemd", "webhook"]


@pytest.mark.parametrize("kind", ["comand", "program", "handler", "finding", "../x", "os"])
def test_an_unknown_kind_is_rejected_with_the_known_kinds(kind: str) -> None:
    with pytest.raises(
        BadAgentConfig, match=r"agent.toml:2: handler.it.kind: .* is not one of command, haproxy, log"
    ) as e:
        handler_of(f'kind = "{kind}"')
    assert ("Did you mean 'command'" in str(e.value)) == (kind == "comand")


def test_a_missing_kind_is_rejected() -> None:
    with pytest.raises(
        BadAgentConfig, match=r"kind: It is missing. Write one of command, .* or give the `file` of your own"
    ):
        handler_of("")


def test_a_file_can_contain_a_custom_handler(tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text(OWN)
    handler = handler_of('file = "greet.py"\ngreeting = "hello"', tmp_path)
    job = LoneJob(tmp_path)
    handler.prepare(job)
    assert job.said == ["hello"]
    with pytest.raises(BadAgentConfig, match=r"greeting: It is missing. Write some words"):
        handler_of('file = "greet.py"', tmp_path)


def test_of_several_handlers_in_a_file_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(OWN + "\nclass Shout(Greet): pass\n")
    with pytest.raises(BadAgentConfig, match=r"two.py has several handlers \(Greet, Shout\). Choose one with KIND = "):
        handler_of('file = "two.py"\ngreeting = "a"', tmp_path)
    (tmp_path / "two.py").write_text(OWN + "\nclass Shout(Greet): pass\nKIND = Shout\n")
    assert type(handler_of('file = "two.py"\ngreeting = "a"', tmp_path)).__name__ == "Shout"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (None, "cannot be read: No such file"),
        ("def", "cannot be loaded: line 1: "),
        ("\0", "cannot be loaded: "),
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "cannot be loaded: SystemExit: 3"),
        ("import no_such_module", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        (
            "from forewarn.agent import Handler",
            "has no handler. A handler is a class that inherits from forewarn.agent.Handler",
        ),
        ("KIND = 3", "is not a class that inherits"),
        (
            "from forewarn.agent import Handler\nclass A(Handler): pass",
            "A does not define __init__, describe, prepare, undo",
        ),
        (OWN.replace("options.reject", "self.no_such_thing.reject"), "Cannot create the handler: AttributeError: "),
    ],
)
def test_a_file_without_a_handler_is_a_clear_error(tmp_path: Path, code: str | None, problem: str) -> None:
    if code is not None:
        (tmp_path / "own.py").write_text(code)
    with pytest.raises(BadAgentConfig, match=f"(?s)agent.toml:2: handler.it.file: .*{problem}"):
        handler_of('file = "own.py"', tmp_path)


def test_kind_and_file_together_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadAgentConfig, match="Give either kind or file"):
        handler_of('kind = "log"\nfile = "own.py"', tmp_path)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package beside ours, as an installer leaves it."""
    (tmp_path / "hand_written.py").write_text(OWN)
    information = tmp_path / "hand_written-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: hand-written\nVersion: 1\n")
    points = "[forewarn.handlers]\ngreet = hand_written:Greet\nbroken = hand_written:Nobody\nother = os:path\n"
    (information / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("installed")
def test_an_installed_handler_is_a_kind() -> None:
    assert handler_of('kind = "greet"\ngreeting = "hello"').describe("prepare") == "say hello"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("broken", "hand_written:Nobody cannot be loaded: AttributeError"),
        ("other", "os:path is not a class that inherits"),
        ("gret", "is not one of command, .*webhook, broken, greet, other. Did you mean 'greet'"),
    ],
)
def test_an_invalid_installed_handler_is_a_clear_error(kind: str, problem: str) -> None:
    with pytest.raises(BadAgentConfig, match=problem):
        handler_of(f'kind = "{kind}"')


def test_kinds_are_found_in_the_single_file_agent(tmp_path: Path) -> None:
    bundle = tmp_path / "agent.pyz"
    zipapp.create_archive(
        ROOT / "src",
        bundle,
        main="forewarn.agent.handlers.finding:kinds",
        filter=lambda path: path.suffix in (".py", ""),
    )
    code = f"import sys; sys.path.insert(0, {str(bundle)!r})\n"
    code += "from forewarn.agent.handlers import loader as f; print(f.__file__, *f.kinds())"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    where, *found = done.stdout.split()
    assert where.startswith(str(bundle))
    assert found == kinds()


def test_an_agent_loads_only_the_handlers_that_it_uses() -> None:
    """What is large is loaded when it is needed: most agents wait for days, and some wait with little memory."""
    code = "import sys; from forewarn.agent.config_file import read_text; read_text({!r}, '', ''); print(*sys.modules)"
    needed = {"haproxy": 'socket = "/a"\nserver = "b/c"', "process": 'pid_file = "/a"', "systemd": 'unit = "a"'}
    needed |= {"command": 'prepare = ["a"]', "webhook": 'url = "http://a"', "log": ""}
    assert set(needed) == set(kinds())
    config = "\n".join(f'[handler.{kind}]\nkind = "{kind}"\n{options}' for kind, options in needed.items())
    done = subprocess.run([sys.executable, "-c", code.format(config)], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"subprocess", "shutil", "bz2", "hashlib", "importlib.metadata", "inspect", "asyncio", "click"}
    with pytest.raises(ImportError):
        from forewarn.agent import NoSuchName  # noqa: F401
