"""Documents that contradict each other."""

from __future__ import annotations

from agent.events import told
from forewarn.agent.belief import DOUBT_SECONDS, Belief
from forewarn.wire.reading import ToldDocument

FIRST, SECOND = told("E1"), told("E2")


def test_what_is_newer_or_the_same_is_believed() -> None:
    belief = Belief()
    assert belief.take(ToldDocument(4, (FIRST,)), 0) == (FIRST,)
    assert belief.take(ToldDocument(4, ()), 0) == ()
    assert belief.take(ToldDocument(5, (FIRST, SECOND)), 0) == (FIRST, SECOND)
    assert not belief.in_doubt()


def test_an_older_document_makes_nothing_disappear() -> None:
    belief = Belief()
    belief.take(ToldDocument(5, (FIRST,)), 0)
    assert belief.take(ToldDocument(4, ()), 1) == (FIRST,)
    assert belief.in_doubt()
    assert belief.take(ToldDocument(5, (FIRST,)), 2) == (FIRST,)
    assert not belief.in_doubt()
    assert belief.take(ToldDocument(6, ()), 3) == ()


def test_what_an_older_document_lists_is_heeded() -> None:
    belief = Belief()
    belief.take(ToldDocument(5, (FIRST,)), 0)
    assert belief.take(ToldDocument(1, (SECOND,)), 1) == (FIRST, SECOND)
    assert belief.take(ToldDocument(1, (SECOND,)), 2) == (FIRST, SECOND)


def test_an_older_document_that_stays_is_believed() -> None:
    belief = Belief()
    belief.take(ToldDocument(5, (FIRST,)), 0)
    assert belief.take(ToldDocument(0, ()), 1) == (FIRST,)
    assert belief.take(ToldDocument(0, ()), 1 + DOUBT_SECONDS) == ()
    assert belief.take(ToldDocument(1, (SECOND,)), 20) == (SECOND,)
    assert not belief.in_doubt()
