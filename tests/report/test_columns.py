"""Columns and paragraphs: aligned, and no wider than they may be."""

import pytest

from jaxplan.report.columns import columns, paragraph

ROWS = [["all-gather of weights, with fsdp, context and expert", "1,024 x", "12.0 GiB"], ["all-reduce", "8 x", "4 B"]]


def test_columns_are_aligned_as_they_are_asked_to():
    assert columns([["a", "1"], ["bcd", "23"]], 80, right=(1,)) == ["  a     1", "  bcd  23"]
    assert columns([["a", "", "x"], ["b", "", "y"]], 80, indent="") == ["a     x", "b     y"]
    assert columns([], 80) == []


@pytest.mark.parametrize("width", [40, 48, 60, 80])
def test_words_are_folded_and_figures_are_not(width):
    lines = columns(ROWS, width, right=(1, 2))
    assert max(map(len, lines)) <= width
    assert lines[0].endswith("1,024 x  12.0 GiB") and lines[-1].endswith("    8 x       4 B")
    text = " ".join(" ".join(line.split()) for line in lines)
    for word in ROWS[0][0].split():
        assert word in text


def test_a_column_is_not_folded_to_nothing():
    (first, *_) = columns([["word " * 10, "9" * 60]], 40, right=(1,))
    assert first.startswith("  word word")      # too wide at last: the figures have the last word
    assert len(columns([["w" * 30]], 20)) == 2


def test_a_paragraph_hangs():
    assert paragraph("one two three", 9) == ["one two", "  three"]
    assert paragraph("all-to-all all-gather", 14, indent="  ") == ["  all-to-all", "    all-gather"]
