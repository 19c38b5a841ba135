"""Forewarn: every machine is told before something happens to it, and may answer."""

from importlib.metadata import version

__version__ = version("forewarn")
