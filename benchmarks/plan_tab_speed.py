"""How fast TensorBoard's Plan tab is with 50,000 plans, in a headless Chromium on this machine.

    python benchmarks/plan_tab_speed.py [PLANS]

Needs chromium and chromedriver. First paint is from the click on a run to the first frame that shows its plot and its
table: document fetched, parsed, sorted and drawn. Sorting and filtering are from the event to the frame after it; the
median and the worst of several.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "profile" / "tensorboard"))

import browser
import made_documents as made

PLANS = 50_000
TIMES = 7
FRAME = "await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));"
PAINT = f"""
const start = performance.now();
document.querySelector('[data-run="many"]').click();
while (!document.querySelector('.window tr[data-row]')) await new Promise(requestAnimationFrame);
{FRAME}
return performance.now() - start;
"""
SORT = f"""
const head = document.querySelector(`.window th:nth-child(${{arguments[0]}}) button`);
const start = performance.now();
head.click();
const worked = performance.now() - start;
{FRAME}
return [worked, performance.now() - start];
"""
PICK = f"""
const pick = document.querySelector(`[data-filter=${{arguments[0]}}]`);
const start = performance.now();
pick.value = arguments[1];
pick.dispatchEvent(new Event('change'));
const worked = performance.now() - start;
{FRAME}
return [worked, performance.now() - start];
"""
COLUMNS = {"mesh": 1, "remat": 3, "memory": 5, "step time": 6, "MFU": 8, "limited by": 9}


def script(body: str) -> str:
    """A body with `await` in it as a script whose promise is waited for."""
    return f"return (async (...args) => {{ {body.replace('arguments[', 'args[')} }})(...arguments)"


def main() -> None:
    plans = int(sys.argv[1]) if len(sys.argv) > 1 else PLANS
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        path = made.write(folder / "runs" / "many", "candidates.json", made.candidates(plans))
        made.write(folder / "runs" / "small", "run.json", made.measured())
        print(f"{plans:,} plans, {path.stat().st_size / 2**20:.1f} MiB of JSON")
        with browser.tensorboard(folder / "runs", folder) as address, browser.chromium(folder) as driver:
            tab = browser.Tab(driver, address, folder)
            paints = []
            for _ in range(TIMES):
                tab.open("small")
                tab.wait(lambda d: tab.all(".view[data-ready]"))
                paints.append(tab.run(script(PAINT)))
            told("first paint", paints)
            firsts = [tab.run(script(SORT), column) for column in COLUMNS.values()]
            agains = [tab.run(script(SORT), column) for _ in range(TIMES) for column in COLUMNS.values()]
            picks = [("tensor", "2"), ("remat", "dots"), ("tensor", ""), ("remat", "")] * TIMES
            filters = [tab.run(script(PICK), *pick) for pick in picks]
            for name, found in (("sort, first time", firsts), ("sort, again", agains), ("filter", filters)):
                told(f"{name}, until done", [worked for worked, _ in found])
                told(f"{name}, until painted", [painted for _, painted in found])


def told(name: str, milliseconds: list[float]) -> None:
    print(f"{name:32} median {statistics.median(milliseconds):6.0f} ms   worst {max(milliseconds):6.0f} ms")


if __name__ == "__main__":
    main()
