"""The text of metrics, read by Prometheus' own parser for Python."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from depth import amount
from forewarn.wire.metrics_text import Metric, Sample, histogram_samples, write_metrics

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as ParsedMetric

ODD = 'a"b\\c\nd{e="f"} \\n #\r\x85\u2028é'


def parsed(*metrics: Metric) -> list[ParsedMetric]:
    return list(text_string_to_metric_families(write_metrics(metrics)))


def parsed_samples(*metrics: Metric) -> list[tuple[str, dict[str, str], float]]:
    return [(sample.name, sample.labels, sample.value) for metric in parsed(*metrics) for sample in metric.samples]


def test_the_whole_text() -> None:
    polls = [Sample((("version", "2020-07-01"), ("answer", "200")), 3), Sample((("version", "other"),), 1)]
    metrics = [
        Metric("polls_total", "counter", "Answered polls.", polls),
        Metric("readers", "gauge", "Clients.", [Sample((), 0.25)]),
        Metric("empty", "gauge", "No samples."),
        Metric("lag_seconds", "histogram", "Delay.", histogram_samples((("type", "x"),), (0.5, 1.0), (1, 0, 2), 9.5)),
    ]
    assert write_metrics(metrics).splitlines() == [
        "# HELP polls_total Answered polls.",
        "# TYPE polls_total counter",
        'polls_total{version="2020-07-01",answer="200"} 3.0',
        'polls_total{version="other"} 1.0',
        "# HELP readers Clients.",
        "# TYPE readers gauge",
        "readers 0.25",
        "# HELP empty No samples.",
        "# TYPE empty gauge",
        "# HELP lag_seconds Delay.",
        "# TYPE lag_seconds histogram",
        'lag_seconds_bucket{le="0.5",type="x"} 1.0',
        'lag_seconds_bucket{le="1.0",type="x"} 1.0',
        'lag_seconds_bucket{le="+Inf",type="x"} 3.0',
        'lag_seconds_count{type="x"} 3.0',
        'lag_seconds_sum{type="x"} 9.5',
    ]


def test_no_metrics_are_an_empty_text() -> None:
    assert write_metrics([]) == ""


def test_names_kinds_and_help_are_read_back() -> None:
    kinds = ["counter", "gauge", "histogram"]
    found = parsed(*(Metric(f"{kind}_total", kind, f'Its "help" {ODD}') for kind in kinds))
    assert [(metric.name, metric.type) for metric in found] == [
        ("counter", "counter"),  # the parser drops the suffix of a counter
        ("gauge_total", "gauge"),
        ("histogram_total", "histogram"),
    ]
    assert {metric.documentation for metric in found} == {f'Its "help" {ODD}'}


def test_labels_keep_their_order_and_any_text() -> None:
    labels = (("z", ODD), ("a", ""), ("m", "\\"))
    ((name, found, value),) = parsed_samples(Metric("x", "gauge", "X.", [Sample(labels, 1)]))
    assert (name, tuple(found.items()), value) == ("x", labels, 1)


@settings(max_examples=amount(500))
@given(
    st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"])), st.integers() | st.floats(allow_nan=False)),
        max_size=5,
    )
)
def test_every_label_and_number_is_read_back(values: list[tuple[str, float]]) -> None:
    samples = [Sample((("text", text),), number) for text, number in values]
    found = parsed_samples(Metric("x", "gauge", "X.", samples))
    assert found == [("x", {"text": text}, float(number)) for text, number in values]


def test_half_a_surrogate_pair_is_replaced() -> None:
    found = parsed_samples(Metric("x", "gauge", "X.", [Sample((("type", "Re\ud800boot"),), 1)]))
    assert found == [("x", {"type": "Re?boot"}, 1)]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "1.0"),
        (False, "0.0"),
        (-3, "-3.0"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (10**5000, "+Inf"),
        (-(10**5000), "-Inf"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
    ],
    ids=lambda found: found if isinstance(found, str) else "",
)
def test_numbers(value: float, text: str) -> None:
    assert write_metrics([Metric("x", "gauge", "X.", [Sample((), value)])]).splitlines()[-1] == f"x {text}"


def test_buckets_are_cumulative_and_end_with_all() -> None:
    samples = histogram_samples((("type", "Reboot"),), (0.0, 30.0, 604800.0), (1, 2, 0, 4), 7.5)
    found = parsed_samples(Metric("notice_seconds", "histogram", "Notice.", samples))
    buckets = [(labels["le"], value) for name, labels, value in found if name == "notice_seconds_bucket"]
    assert buckets == [("0.0", 1), ("30.0", 3), ("604800.0", 3), ("+Inf", 7)]
    assert found[-2:] == [
        ("notice_seconds_count", {"type": "Reboot"}, 7),
        ("notice_seconds_sum", {"type": "Reboot"}, 7.5),
    ]
    assert all(labels["type"] == "Reboot" for _, labels, _ in found)


def test_a_histogram_needs_one_count_more_than_bounds() -> None:
    with pytest.raises(ValueError, match="zip"):
        histogram_samples((), (1.0, 2.0), (1, 2), 3.0)
