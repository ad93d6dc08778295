"""The Plan tab in a real browser and a real TensorBoard: what people see, at the root and under a path prefix."""

import contextlib
import functools
import importlib.util
import json

import browser
import pytest
from selenium.webdriver.support.ui import Select

from jaxplan.units import format_bytes, format_seconds

PACKAGE = "jax_cuda13_plugin"       # compiles the plan that is shown
ABSENT = browser.missing() or ("" if importlib.util.find_spec(PACKAGE) else f"{PACKAGE} is not installed")
pytestmark = pytest.mark.skipif(bool(ABSENT), reason=ABSENT)


@pytest.fixture(scope="module")
def driver(plan_home):
    with browser.chromium(plan_home) as found:
        yield found


@pytest.fixture(scope="module")
def open_tab(driver, plan_logdir, plan_home):
    """Starts a TensorBoard under a path prefix and opens the tab; all of them end with the module."""
    with contextlib.ExitStack() as running:

        def opened(prefix):
            shots = plan_home / f"shots{prefix.replace('/', '-')}"
            shots.mkdir()
            print(f"screenshots: {shots}")
            address = running.enter_context(browser.tensorboard(plan_logdir, plan_home, prefix))
            return browser.Tab(driver, address, shots)

        yield functools.cache(opened)


@pytest.fixture
def tab(open_tab):
    """The tab of a TensorBoard at the root."""
    return shown(open_tab(""))


@pytest.fixture(params=["", "/team/board"], ids=["root", "prefix"])
def either(request, open_tab):
    """The tab at the root, and under a path prefix: what makes addresses is tested under both."""
    return shown(open_tab(request.param))


def shown(tab):
    """The tab in sight."""
    if not tab.driver.current_url.startswith(tab.address) or "#jaxplan" not in tab.driver.current_url:
        tab.open()
    tab.enter("jaxplan")
    return tab


@pytest.fixture(scope="module")
def search(plan_logdir):
    return json.loads((plan_logdir / "searched" / "search.json").read_text())


def drawn(tab) -> int:
    """Pixels of the first canvas that are painted."""
    return tab.run(
        "const c = document.querySelector('canvas');"
        "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.filter((v, i) => i % 4 == 3 && v).length"
    )


def first_row(tab) -> str:
    """Of the long table: which plan stands on top."""
    return tab.run("return document.querySelector('.window tr[data-row]').dataset.row")


def test_every_view_of_a_real_search_is_drawn(either, search):
    either.show("searched", "search")
    rows = either.all("#kept tbody tr")
    assert len(rows) == len(search["plans"])
    assert search["plans"][0]["plan"].endswith("plan.json") and "compiled" in rows[0].text
    assert either.all(".window tr[data-row]") and drawn(either) > 1000
    either.shot("plans")
    either.click("#kept button.open")
    either.wait(lambda d: either.all('.view[data-ready][data-view="plan"]'))
    for card in ("memory", "time", "timeline", "roofline", "mesh", "axes", "changes", "assumptions"):
        assert either.all(f"#{card}"), card
    assert not either.all(".notice.fault") and drawn(either) > 1000
    assert len(either.all("#mesh figure .device")) % 8 == 0
    either.shot("plan")
    assert either.errors() == []


def test_figures_are_those_of_the_documents(tab, plan_logdir, search):
    """As the command line would write what the documents hold, with the source."""
    explain = json.loads((plan_logdir / "searched" / "explain.json").read_text())
    tab.show("searched", "plan")
    figures = {box.text.splitlines()[0]: box.text for box in tab.all(".figure")}
    time, memory = figures["step time"], figures["memory of a device"]
    assert format_seconds(explain["step_time_s"]["value"]) in time and "compiled" in time
    assert format_bytes(explain["memory_bytes"]["total"]) in memory and "compiled" in memory
    assert f"of {format_bytes(explain['memory_bytes']['capacity'])}" in memory
    parts = explain["memory_bytes"]["compiled"]["parts"]
    names = [cell.text for cell in tab.all("#memory > .scroll tbody td:nth-child(2)")]
    assert set(names) == {*parts, "total"}


def test_filter_sort_and_choose(tab):
    """5,000 made plans: what passes can be counted by hand."""
    tab.show("made", "search")
    said = tab.one("#matched")
    assert said.text.startswith("5,000 of 5,000 plans")
    Select(tab.one("[data-filter=remat]")).select_by_value("dots")
    tab.wait(lambda d: said.text.startswith("1,667 of"))                # rows 1, 4, 7, ...: 1,667 of 5,000
    box = tab.one("#filter")
    box.send_keys("zero1 compiled")
    tab.wait(lambda d: said.text.startswith("0 of"))                    # the compiled plan is row 0: full, no zero1
    box.clear()
    box.send_keys("zero1")
    tab.wait(lambda d: said.text.startswith("834 of"))                  # odd rows of them: 1, 7, 13, ..., 4,999
    assert first_row(tab) == "1"
    tab.click(".window th:nth-child(5) button")                         # by memory: the least is the last of the filter
    tab.wait(lambda d: first_row(tab) == "4999")
    assert tab.one(".window th:nth-child(5)").get_attribute("aria-sort") == "ascending"
    tab.click(".window tr[data-row]")
    assert "limited by matmul" in tab.text(".chosen") and tab.all(".window tr[aria-selected]")
    tab.shot("filtered")


def test_a_long_table_scrolls_to_its_end(tab):
    tab.show("made", "search")
    tab.run("const w = document.querySelector('.window'); w.scrollTop = w.scrollHeight")
    tab.wait(lambda d: tab.all('.window tr[data-row="4999"]'))
    assert len(tab.all(".window tr[data-row]")) < 100, "only what is in sight exists"


def test_a_click_in_the_plot_chooses_a_plan(tab):
    """Its fastest plan is where a point can be told from others: the front's first."""
    tab.show("searched", "search")
    tab.run(
        "const c = document.querySelector('canvas'), b = c.getBoundingClientRect();"
        "for (let y = 20; y < b.height - 45; y += 4) for (let x = 66; x < b.width - 17; x += 4) {"
        "  if (document.querySelector('.chosen').textContent) return;"
        "  c.dispatchEvent(new MouseEvent('click', {clientX: b.x + x, clientY: b.y + y, bubbles: true})); }"
    )
    assert "a step" in tab.text(".chosen") and tab.all(".window tr[aria-selected]")


def test_the_timeline_is_zoomed_to_one_turn_of_a_loop(tab):
    """480 ms of loops: the last turn of the backward loop is [460, 480] ms; zoomed to it the ruler says so."""
    tab.show("made", "plan")
    totals = tab.run(
        "return import(new URL('steps.js', document.baseURI)).then(async (m) => {"
        "  const r = await fetch(new URL('document?run=made&name=timeline.json', document.baseURI));"
        "  const t = await r.json(); let turns = 0, events = 0;"
        "  m.walk(t.root, 0.46, 0.4799, 1e-6, {event: () => events++, loop: () => turns++, folded: () => 0});"
        "  const found = m.find(t.root, 1, 0.4701, 0);"
        "  return {busy: m.busyOf(t.root, 4), events, name: found.event[3], turn: found.path[0].i}; })"
    )
    assert totals["busy"][0]["busy"] == pytest.approx(16 * (0.009 + 0.019) + 0.008)
    assert totals["busy"][1]["busy"] == pytest.approx(16 * (0.005 + 0.009))
    assert totals["busy"][1]["exposed"] == pytest.approx(16 * 0.002)
    assert totals["name"] == "reduce-scatter gradients" and totals["turn"] == 15
    assert 4 <= totals["events"] <= 9        # one turn, and what ends where it begins
    before = drawn(tab)
    canvas = tab.one("#timeline canvas")
    canvas.send_keys("w")
    canvas.send_keys("w")
    assert drawn(tab) != before
    tab.shot("timeline")


def test_check_goodput_sizes_and_a_comparison(tab, plan_logdir):
    tab.show("searched", "check")
    assert "compiled" in tab.text("#evidence") and "fits" in tab.text(".figures")
    goodput = json.loads((plan_logdir / "searched" / "goodput.json").read_text())
    tab.show("searched", "goodput")
    assert [card for card in ("interval", "lost", "levers", "inputs") if not tab.all(f"#{card}")] == []
    assert f"{goodput['goodput']['value'] * 100:.3g}" in tab.text(".figure")
    lost = [entry for entry in goodput["ledger"][1:] if entry["share"] > 0]
    assert len(tab.all("#lost svg rect")) == len(lost)
    tab.shot("goodput")
    tab.show("made", "choice")
    assert len(tab.all("#options tbody tr")) == 3 and "too late or too dear" in tab.text("#options")
    tab.show("ran", "compare")
    assert tab.all("#operations tbody tr") and not tab.all(".notice.fault")
    tab.shot("compared")


def test_a_real_run(tab, plan_logdir):
    """Three steps on virtual CPU devices; parity was not asked for, memory is not known there."""
    run = json.loads((plan_logdir / "ran" / "run.json").read_text())
    tab.show("ran", "run")
    for card in ("time", "timeline", "steps", "loss", "parity", "profiler", "remarks"):
        assert tab.all(f"#{card}"), card
    assert format_seconds(run["step_time_s"]["median"]) in tab.text(".figure") and not tab.all(".notice.fault")
    assert "Not checked" in tab.text("#parity") and "not known" in tab.text(".figures")
    assert "measured" in tab.text("#timeline .source") and drawn(tab) > 1000
    tab.shot("measured")


def test_a_run_that_was_scaled_down_says_so(tab):
    tab.show("made", "run")
    for card in ("findings", "compared", "devices"):
        assert tab.all(f"#{card}"), card
    assert "data 4 → 1, batch 128 → 8" in tab.text(".notice.advice")
    assert "500 ms" in tab.text(".figure") and "Passed" in tab.text("#parity")


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ("cut", "search.json of cut is not whole JSON"),
        ("nan", "run.json of nan is not whole JSON"),
        ("newer", 'search.json of newer has schema "jaxplan.search/9"; this tab reads jaxplan.search/1'),
        ("short", "column mfu has 9 values, expected 10"),
        ("strange", "This view could not be drawn"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tab, run, told):
    tab.show(run)
    assert told in tab.text(".notice.fault") and len(tab.all(".notice.fault")) == 1


def test_links_open_the_same_run_in_the_profile_tab(either):
    either.open("searched")
    either.show("searched", "plan")
    either.click("a[data-tool=memory_viewer]")
    either.enter("profile")
    either.wait(lambda d: "Peak memory allocation" in either.text("body"))
    either.shot("memory-viewer")
    either.open("ran")
    either.show("ran", "run")
    either.click('a[data-tool="trace_viewer@"]')
    either.enter("profile")
    either.driver.switch_to.frame(either.one("iframe[src*=trace_viewer]"))
    either.wait(lambda d: "/host:CPU" in either.run("return document.body.innerText"))
    either.shot("trace-viewer")


def test_an_address_names_a_run_and_nothing_leaves_the_host(either):
    either.open("ran")
    either.wait(lambda d: either.all('[data-run="ran"][aria-current]') and either.all(".view[data-ready]"))
    either.show("searched", "search")
    either.show("searched", "plan")
    host = "/".join(either.address.split("/")[:3])
    asked = either.asked()
    assert asked and [url for url in asked if not url.startswith((host, "data:", "blob:"))] == []
    assert either.errors() == []


def test_it_is_dark_where_tensorboard_is(tab):
    tab.show("searched", "plan")
    light = tab.run("return getComputedStyle(document.body).backgroundColor")
    tab.run("parent.document.body.classList.add('dark-mode')")
    tab.wait(lambda d: tab.run("return getComputedStyle(document.body).backgroundColor") != light)
    tab.shot("dark")
    tab.run("parent.document.body.classList.remove('dark-mode')")
