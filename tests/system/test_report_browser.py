"""A report in a real browser: nothing on the console, nothing fetched, nothing wider than the screen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commbench.report.__main__ import main
from tests.results import logs

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not (CHROMIUM and DRIVER):
        pytest.skip("no chromium and chromedriver: install Debian's chromium-driver")
    pytest.importorskip("seaborn")
    selenium = pytest.importorskip("selenium.webdriver")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=selenium.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("seaborn")
    folder = tmp_path_factory.mktemp("page")
    times = [(1 << p, 10 + (1 << p) / 1e5, 11 + (1 << p) / 1e5) for p in range(4, 31)]
    (folder / "one.log").write_text(logs.nccl_tests(times))
    (folder / "two.log").write_text(logs.nccl_tests([(s, 2 * a, 3 * b) for s, a, b in times]))
    with pytest.raises(SystemExit) as raised:
        main([str(folder / "one.log"), str(folder / "two.log"), "-o", str(folder / "report.html")])
    assert raised.value.code == 0
    return folder / "report.html"


@pytest.mark.parametrize("width", [1280, 400])
def test_a_page_is_quiet_alone_and_fits(browser: Any, report: Path, width: int) -> None:
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get_log("performance")
    browser.get(report.as_uri())
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert report.as_uri() in asked
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    drawn = "return [...document.images].map(image => image.complete && image.naturalWidth > 0)"
    pictures = browser.execute_script(drawn)
    assert pictures and all(pictures)


def test_tables_sort_and_filter(browser: Any, report: Path) -> None:
    browser.get(report.as_uri())
    sizes = """
      const table = [...document.querySelectorAll("h2#rows ~ .table")][0];
      const column = [...table.querySelectorAll("th")].findIndex(head => head.textContent == "size (B)");
      %s
      return [...table.tBodies?.[0]?.rows ?? table.querySelector("tbody").rows]
        .filter(row => !row.hidden).map(row => Number(row.cells[column].dataset.n));
    """
    click = "table.querySelectorAll('th')[column].querySelector('button').click();"
    ascending = browser.execute_script(sizes % click)
    assert ascending == sorted(ascending) and len(ascending) == 4 * 27
    assert browser.execute_script(sizes % click) == ascending[::-1]
    type_ = (
        "const box = table.querySelector('input'); box.value = 'one.log 1073741824';"
        "box.dispatchEvent(new Event('input'));"
    )
    assert browser.execute_script(sizes % type_) == [1 << 30, 1 << 30]


def test_a_link_of_the_summary_shows_its_row(browser: Any, report: Path) -> None:
    browser.get(report.as_uri())
    found = browser.execute_script(
        "const link = document.querySelector('ul.summary a'); link.click();"
        "return [location.hash, document.querySelector(':target')?.tagName];"
    )
    assert found[0].startswith("#row-") and found[1] == "TR"
