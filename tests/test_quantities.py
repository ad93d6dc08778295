"""Durations, sizes and counts as people type them, and durations as people say them."""

import pytest

from jaxplan.units import format_duration, parse_bytes, parse_count, parse_duration, parse_rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15min", 900), ("15m", 900), ("24h", 86400), ("30d", 2_592_000), ("1.5 h", 5400), ("2w", 1_209_600),
     ("250ms", 0.25), ("600", 600), ("1e3", 1000), (".5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "nbytes"), [("5.67TB", 5.67e12), ("96GiB", 96 * 2**30), ("96e9", 96e9), ("1,000 MB", 1e9), ("12", 12)]
)
def test_sizes(text: str, nbytes: float) -> None:
    assert parse_bytes(text) == pytest.approx(nbytes)


def test_rates_and_counts() -> None:
    assert parse_rate("2GB/s") == parse_rate("2e9") == parse_rate("2GB") == 2e9
    assert parse_count("15T") == parse_count("15e12") == 15e12
    assert parse_count("300_000") == 300_000


@pytest.mark.parametrize("parser", [parse_duration, parse_bytes, parse_rate, parse_count])
@pytest.mark.parametrize("text", ["", "soon", "-3", "nan", "inf", "5 parsecs", "1e", "3s4", "--"])
def test_what_is_no_quantity_says_what_was_expected(parser, text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        parser(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "250 ms"), (51, "51.0 s"), (115, "115 s"), (600, "10.0 min"), (11_135, "3.09 h"), (86_400, "24.0 h"),
     (5_184_000, "60.0 d"), (0, "0 s")],
)
def test_durations_are_said_in_the_unit_that_people_use(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
