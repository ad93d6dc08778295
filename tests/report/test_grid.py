"""Tables as values: narrow terminals lose what is needed least, markdown stays a table whatever the cells hold."""

import pytest
from rich.console import Console

from jaxplan.report.grid import Grid, markdown, rich_table

GRID = Grid(
    "Errors", ("by", "name", "runs", "error"),
    (("chip", "a chip with a very long name indeed", "7", "8.7%"), ("all", "all", "12", "9.1%")),
    right=(2, 3), note="Read it so.", optional=(2, 0),
)


def test_rows_have_the_columns_of_the_head():
    with pytest.raises(ValueError, match="2 headings, a row of 1 cells"):
        Grid("x", ("a", "b"), (("1",),))


@pytest.mark.parametrize(
    ("width", "head"),
    [(100, ("by", "name", "runs", "error")), (30, ("by", "name", "error")), (22, ("name", "error"))],
)
def test_narrow_terminals(width, head):
    found = GRID.narrowed(width)
    assert found.head == head and found.note == GRID.note
    assert {found.head[i] for i in found.right} == {"runs", "error"} & set(head)
    console = Console(width=width, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(rich_table(found, plain_text=False))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width and "8.7%" in captured.get() and "…" not in captured.get()


def test_what_is_left_out_is_counted():
    assert GRID.first(2) is GRID
    assert GRID.first(1).note == "Read it so. 1 more rows left out." and len(GRID.first(1).body) == 1


def test_markdown_is_a_table():
    grid = Grid("T", ("a", "b"), (("x | y", "< 3%"), ("<b>", "two\nlines")), right=(1,))
    lines = markdown(grid)
    assert lines[:4] == ["### T", "", "| a | b |", "| --- | ---: |"]
    assert lines[4:] == ["| x \\| y | < 3% |", "| &lt;b> | two lines |", ""]
    assert markdown(GRID)[-2:] == ["Read it so.", ""]
