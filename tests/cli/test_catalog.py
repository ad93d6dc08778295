"""`catalog`: rows as data, text for pipes, errors."""

import json

import pytest

from jaxplan.cli.catalog import catalog, rows
from jaxplan.errors import InputError


def test_lists():
    assert {"h100", "v5e"} <= {row["id"] for row in rows("chips")}
    assert {"gb200-nvl72", "v5p"} <= {row["id"] for row in rows("machines")}
    assert next(row for row in rows("models") if row["name"] == "llama3-8b")["parameters"] == 8_030_261_248
    assert rows("chip") == rows("chips")


def test_every_figure_of_a_chip_with_its_source():
    figures = {row["figure"]: row for row in rows("chips", "h100")}
    assert figures["hbm_bytes_per_s"]["value"] == 3350e9
    assert figures["target.core_count"]["value"] == 132
    assert figures["measured.matmul_fraction"]["value"] == 0.803
    assert all(row["source"] for row in figures.values())


def test_legal_slices():
    figures = {row["figure"]: row for row in rows("machines", "v5e")}
    assert (
        figures["slice 8x16"]["value"].startswith("128 chips")
        and figures["slice 8x16"]["source"] == "rings: 16"
    )
    assert "slice 7x13" not in figures


def test_text_for_a_pipe(capsys):
    assert catalog("chips", "h100") == 0
    out = capsys.readouterr().out
    assert "3,350 GB/s" in out and "63" not in out.split("hbm_bytes ")[0]
    catalog("models")
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("llama3-8b"))
    assert "8.03 B" in line


def test_json(capsys):
    catalog(as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "jaxplan.catalog/1" and set(data) == {"schema", "chips", "machines", "models"}


@pytest.mark.parametrize(
    ("kind", "name"), [("planets", None), ("chips", "h999"), ("machines", "x"), ("models", "y")]
)
def test_unknown(kind, name):
    with pytest.raises(InputError, match="unknown"):
        rows(kind, name)
