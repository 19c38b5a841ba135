"""A person who uses the portal in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Locator

SECONDS = 15
"""How long to wait for something to appear."""


class PortalUser:
    """A browser window, and what a person does in it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        context.set_default_timeout(SECONDS * 1000)
        self._url = url
        self.page = context.new_page()
        self.problems: list[str] = []
        """Errors of scripts, and violations of the content security policy."""
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))

    def _on_console(self, message: ConsoleMessage) -> None:
        # A response with an error status, or a lost connection, is not an error of the page.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def close(self) -> None:
        self.page.context.close()

    def sign_in(self, token: str) -> None:
        """Sign in with a token, as a person does."""
        self.open("")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.sees("Sign out")

    def open(self, path: str) -> None:
        """Open a page by its address."""
        self.page.goto(f"{self._url}/portal/{path}")

    def follow(self, name: str) -> None:
        """Click on a link."""
        self.page.get_by_role("link", name=name, exact=True).first.click()

    def press(self, name: str) -> None:
        """Click on a button."""
        self.button(name).click()

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    def sees(self, text: str, within: str = "body") -> None:
        """Wait until a text is visible."""
        self.page.locator(within).get_by_text(text).first.wait_for(state="visible")

    def no_longer_sees(self, text: str, within: str = "body") -> None:
        """Wait until a text is not visible."""
        self.page.locator(within).get_by_text(text).first.wait_for(state="hidden")

    def heading(self, text: str) -> None:
        """Wait for the page with this heading."""
        self.page.get_by_role("heading", name=text, level=1).wait_for()

    @property
    def text(self) -> str:
        return self.page.locator("main").inner_text()
