"""The work of an agent, in memory and on disk."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forewarn.agent.work.state_file import NoFile, StateFile
    from forewarn.agent.work.work import Work

logger = logging.getLogger(__name__)


class Ledger:
    """Every change is on disk before anybody acts on it. Used under the agent's lock."""

    def __init__(self, file: StateFile | NoFile) -> None:
        self._file = file
        self.works: dict[str, Work] = {work.id: work for work in file.load()}
        self._unsaved = False
        self._failing = False

    def keep(self, *works: Work) -> bool:
        """Whether it is on disk; if not, it is tried again with the next change or by `settle`."""
        for work in works:
            self.works[work.id] = work
        return self._save()

    def replace(self, works: dict[str, Work]) -> bool:
        """The same for all of them at once; what is as it was is not written again."""
        if works == self.works:
            return True
        self.works = works
        return self._save()

    def drop(self, event_id: str) -> None:
        if self.works.pop(event_id, None) is not None:
            self._save()

    def settle(self) -> bool:
        """Write what could not be written before."""
        return not self._unsaved or self._save()

    def close(self) -> None:
        self.settle()
        self._file.close()

    def _save(self) -> bool:
        try:
            self._file.save(self.works.values())
        except (OSError, ValueError, TypeError, RecursionError) as error:
            if not self._failing:
                logger.critical("What is done cannot be noted in %s (%s): nothing is begun.", self._file.folder, error)
            self._failing = self._unsaved = True
            return False
        if self._failing:
            logger.warning("What is done can be noted again in %s.", self._file.folder)
        self._failing = self._unsaved = False
        return True
