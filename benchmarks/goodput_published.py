"""Predicted useful share of time beside what runs published, as a page: `--write` replaces docs/goodput.md."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxplan.goodput.published import compared
from jaxplan.machine import failures
from jaxplan.plan.files import save
from jaxplan.report.goodput_published import page

PAGE = Path(__file__).resolve().parent.parent / "docs" / "goodput.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} instead of printing it")
    asked = parser.parse_args()
    runs = failures.published()
    text = page(runs, [compared(run) for run in runs], failures.rates())
    if asked.write:
        save(PAGE, text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
