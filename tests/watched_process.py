"""A service process that records what its clients see, for the checker of notices."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from forewarn.testing import ServiceProcess
from notice_witness import NoticeWitness

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from forewarn.testing.client import HTTPResponse


class WatchedProcess(ServiceProcess):
    """Records the documents that `request` gets, and the approvals that are sent. The nodes of a service share it all.

    Things of the same time have no order, so a test in virtual time lets time pass between its first poll and its first
    request: the scope would otherwise count as one whose events were not enabled.
    """

    def __init__(self, folder: Path, notices: NoticeWitness | None = None) -> None:
        super().__init__(folder)
        self.notices = notices or NoticeWitness()
        self._is_alone = notices is None
        self._is_virtual = False
        self._down_since: datetime | None = None

    def start(self, *arguments: str, **variables: str) -> Self:
        super().start(*arguments, **variables)
        self._is_virtual = "virtual" in arguments
        if not self.notices.has_looked:
            self.notices.first_look(self.list_all("/v1/vms"), self.now)
            self.poll_all()
        elif self._down_since and self._is_alone and not self._is_virtual:
            self.notices.down(self._down_since, datetime.now(UTC))
        self._down_since = None
        return self

    def kill(self) -> int:
        self._down_since = datetime.now(UTC)
        return super().kill()

    def poll_all(self) -> None:
        """Poll as a VM of each scope whose events are enabled."""
        listeners = [vm for vm in self.list_all("/v1/vms") if vm["events_enabled"] and vm["address"]]
        for address in {vm["scope"]: vm["address"] for vm in listeners}.values():
            self.request(source=address)

    def request(self, *arguments: Any, source: str = "127.0.0.1", **options: Any) -> HTTPResponse:
        answer = super().request(*arguments, source=source, **options)
        if answer.status == 200 and b'"Events"' in answer.body:
            self.notices.document(source, answer.json(), self.now if self._is_virtual else None)
        return answer

    def approve(self, *ids: str, source: str = "127.0.0.1") -> HTTPResponse:
        for event_id in ids:
            self.notices.approving(event_id)
        return super().approve(*ids, source=source)

    def control(self, method: str, path: str, *arguments: Any, **options: Any) -> HTTPResponse:
        if path.endswith("/approve"):
            self.notices.approving(path.split("/")[-2])
        return super().control(method, path, *arguments, **options)

    def check_notices(self) -> None:
        """Fail if a VM was touched without its notice."""
        violations = self.notices.violations(self)
        assert not violations, "\n".join(violations)
