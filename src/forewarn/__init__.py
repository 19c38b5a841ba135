"""Forewarn notifies every machine before something happens to it, and lets it respond."""

from __future__ import annotations

__version__ = "0.1.0"
