"""TensorBoard and a headless Chromium, as the browser tests and the benchmark of the Plan tab use them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parents[3]
PLUGIN = "jaxplan.profile.tensorboard.plugin:JaxplanPlugin"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)
PATIENCE_S = 60         # until a view is there, on a machine that does other things as well


def missing() -> str:
    """What is not installed here that these tests need; empty where all is there."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)} (apt-get install chromium chromium-driver)" if absent else ""


def registered(folder: Path) -> str:
    """A PYTHONPATH on which TensorBoard finds the plugin, also where jaxplan is not installed but only checked out."""
    found = [str(ROOT)]
    if not any(point.value == PLUGIN for point in entry_points(group="tensorboard_plugins")):
        made = folder / "jaxplan_checkout-0.dist-info"
        made.mkdir(exist_ok=True)
        (made / "METADATA").write_text("Metadata-Version: 2.1\nName: jaxplan-checkout\nVersion: 0\n")
        (made / "entry_points.txt").write_text(f"[tensorboard_plugins]\njaxplan = {PLUGIN}\n")
        found.insert(0, str(folder))
    return os.pathsep.join([*found, *filter(None, [os.environ.get("PYTHONPATH")])])


@contextlib.contextmanager
def tensorboard(logdir: Path, folder: Path, prefix: str = "") -> Iterator[str]:
    """A TensorBoard of its own on a free port; its address, with a slash at its end."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), "--host", "127.0.0.1", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--path_prefix", prefix],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": registered(folder)},
    )
    assert process.stdout is not None
    said = []
    try:
        for line in process.stdout:
            said.append(line)
            address = re.search(r"TensorBoard [\d.]+ at (http://[^ ]+)", line)
            if address:
                threading.Thread(target=process.stdout.read, daemon=True).start()   # a full pipe would stop it
                yield address.group(1).rstrip("/") + "/"
                return
        raise AssertionError("TensorBoard did not start: " + "".join(said))
    finally:
        process.terminate()
        process.wait(20)


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """A headless browser with its profile in `folder`."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder / 'chromium'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))   # no driver is fetched
    try:
        yield driver
    finally:
        driver.quit()


class Tab:
    """The Plan tab in a browser."""

    def __init__(self, driver: webdriver.Chrome, address: str, shots: Path) -> None:
        self.driver, self.address, self.shots = driver, address, shots

    def open(self, run: str = "") -> None:
        """Loads TensorBoard anew, on this tab."""
        self.driver.get("about:blank")
        for log in ("performance", "browser"):
            self.driver.get_log(log)
        self.driver.get(self.address + (f"?p.jaxplan.run={run}" if run else "") + "#jaxplan")
        self.enter("jaxplan")

    def enter(self, plugin: str) -> None:
        """Goes into the frame of a plugin."""
        self.driver.switch_to.default_content()

        def frame(driver):
            frames = driver.find_elements(By.TAG_NAME, "iframe")
            shown = [found for found in frames if found.is_displayed()]
            return next((found for found in shown if f"name={plugin}" in (found.get_attribute("src") or "")), None)

        self.driver.switch_to.frame(self.wait(frame))

    def wait(self, condition: Callable):
        """What `condition` of the driver gives, as soon as it is true."""
        return WebDriverWait(self.driver, PATIENCE_S, ignored_exceptions=[Exception]).until(condition)

    def show(self, run: str, view: str = "") -> None:
        """Picks a run and one of its views, and waits until it is drawn."""
        self.click(f'[data-run="{run}"]')
        self.wait(lambda d: self.all(f'[data-run="{run}"][aria-current]') and self.all(".view[data-ready]"))
        if view:
            self.click(f'[role=tab][data-view="{view}"]')
            self.wait(lambda d: self.all(f'.view[data-ready][data-view="{view}"]'))

    def click(self, selector: str) -> None:
        """Clicks what may be drawn anew at any moment, as soon as it is there."""
        script = "const e = document.querySelector(arguments[0]); e?.click(); return !!e"
        self.wait(lambda d: self.run(script, selector))

    def all(self, selector: str):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str):
        return self.wait(lambda d: self.all(selector))[0]

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def run(self, script: str, *arguments):
        """What a script in the frame returns; it may be a promise."""
        return self.driver.execute_script(script, *arguments)

    def shot(self, name: str) -> None:
        """A picture of the window, for people."""
        self.driver.save_screenshot(str(self.shots / f"{name}.png"))

    def asked(self) -> list[str]:
        """Addresses that were requested since `open`."""
        found = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [m["params"]["request"]["url"] for m in found if m["method"] == "Network.requestWillBeSent"]

    def errors(self) -> list[str]:
        """What the console calls severe; TensorBoard asks for its own fonts at the root, also where it has a prefix."""
        found = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in found if "font-roboto" not in message]
