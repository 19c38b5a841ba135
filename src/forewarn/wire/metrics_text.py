"""Prometheus text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[tuple[str, str], ...]
"""Names and values in output order."""

_NOT_FINITE = {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}


class Sample(NamedTuple):
    """One value of a metric."""

    labels: Labels
    value: float
    suffix: str = ""
    """Follows the metric's name: `_bucket`, `_count` or `_sum` of a histogram."""


class Metric(NamedTuple):
    """A metric with its current samples."""

    name: str
    """The full name. The name of a counter ends in `_total`."""
    kind: str
    """counter, gauge or histogram."""
    help: str
    samples: Sequence[Sample] = ()


def histogram_samples(labels: Labels, bounds: Sequence[float], counts: Sequence[int], total: float) -> list[Sample]:
    """The samples of one histogram. `counts` has one number per bound, and one for values above the last bound."""
    # In the text, each bucket also counts the values of all smaller buckets.
    buckets = zip([*map(_number, bounds), "+Inf"], accumulate(counts), strict=True)
    return [
        *(Sample((("le", bound), *labels), number, "_bucket") for bound, number in buckets),
        Sample(labels, sum(counts), "_count"),
        Sample(labels, total, "_sum"),
    ]


def write_metrics(metrics: Iterable[Metric]) -> str:
    """The page that Prometheus scrapes."""
    lines = []
    for name, kind, help_text, samples in metrics:
        lines += [f"# HELP {name} {_escaped(help_text)}", f"# TYPE {name} {kind}"]
        lines += [f"{name}{suffix}{_label_text(labels)} {_number(value)}" for labels, value, suffix in samples]
    text = "".join(f"{line}\n" for line in lines)
    # UTF-8 cannot encode half of a surrogate pair. Without the replacement, one bad label would lose the whole page.
    return text.encode("utf-8", "replace").decode()


def _label_text(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_quoted(value)}"' for name, value in labels)
    return f"{{{inside}}}"


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    """Every number is a 64-bit float, also a whole one."""
    try:
        text = repr(float(value))
    except OverflowError:  # a larger whole number, which Prometheus would reject together with the page
        text = "inf" if value > 0 else "-inf"
    return _NOT_FINITE.get(text, text)
