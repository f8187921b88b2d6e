"""Debian's Chromium, headless, for tests and screenshots of pages; `conftest.py` makes the fixtures known."""

import json
import shutil
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--disable-dev-shm-usage",
]  # fmt: skip
BROWSER, DRIVER = "chromium", "chromedriver"
# The page of a new tab is Chromium's own, and its picture is a data: address: neither leaves the process.
BROWSERS_OWN = ("chrome:", "chrome-untrusted:", "data:", "blob:")


def find_missing_dependency():
    """What is missing for it, None where all is there."""
    with suppress(ImportError):
        import selenium  # noqa: F401

        absent = [name for name in (BROWSER, DRIVER) if not shutil.which(name)]
        return f"{' and '.join(absent)} is not installed" if absent else None
    return "selenium is not installed"


needs_browser = pytest.mark.skipif(
    find_missing_dependency() is not None, reason=f"no browser: {find_missing_dependency()}"
)


@contextmanager
def open_chromium():
    """A driver with a profile of its own, which logs the console and every request."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which(BROWSER)
        for flag in [*FLAGS, f"--user-data-dir={profile}"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which(DRIVER)))
        try:
            yield driver
        finally:
            driver.quit()


def set_viewport(driver, width=1280, height=900, dark=False, scale=1):
    """Screen size and preferred colours."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600,
    })  # fmt: skip
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def type_text(driver, element, text):
    """Into a text box; some ChromeDrivers refuse to `send_keys` beyond U+FFFF, as emoji are."""
    element.click()
    driver.execute_cdp_cmd("Input.insertText", {"text": text})


def get_requested_urls(driver):
    """The addresses asked for since the last call, without those of the browser's own pages."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [
        url
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
        and not (url := message["params"]["request"]["url"]).startswith(BROWSERS_OWN)
    ]


def to_file_url(path):
    """Of a file."""
    return Path(path).absolute().as_uri()


@pytest.fixture(scope="session")
def driver():
    """A browser that all tests of a process share."""
    with open_chromium() as driver:
        set_viewport(driver)
        yield driver


@pytest.fixture
def shown(driver, tmp_path):
    """Open a page in the browser, and check after the test that it logged no error and requested nothing."""
    opened = set()

    def show(text, name="report.html", **screen):
        path = tmp_path / name
        path.write_text(text, "utf-8")
        set_viewport(driver, **screen)
        driver.execute_cdp_cmd(
            "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
        )
        driver.get(to_file_url(path))
        opened.add(to_file_url(path))
        return driver

    get_requested_urls(driver)
    driver.get_log("browser")
    yield show
    requested = set(get_requested_urls(driver))
    assert requested == opened, f"requested {requested}, opened {opened}"
    errors = driver.get_log("browser")
    assert not errors, errors
    assert driver.execute_script("return window.hacked") is None
