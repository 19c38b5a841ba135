"""Every policy printed on a page is valid."""

from __future__ import annotations

import re
from pathlib import Path

from forewarn.agent.config_file import read_text

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```toml\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN = [
    (f"{page.name}:{text.count(chr(10), 0, block.start()) + 1}", block[1])
    for page in PAGES
    for text in [page.read_text()]
    for block in BLOCK.finditer(text)
    if re.search(r"^\[\[?(rule|handler|peers|agent)\b", block[1], re.MULTILINE)
    and not re.search(r"^file = ", block[1], re.MULTILINE)  # tried with its file elsewhere
]


def test_every_printed_config_is_valid(tmp_path: Path) -> None:
    secret = tmp_path / "peers.secret"
    secret.write_text("0" * 32)
    secret.chmod(0o600)
    assert len(SHOWN) > 5
    for place, text in SHOWN:
        read_text(text.replace("/etc/forewarn/peers.secret", str(secret)), place, tmp_path)
