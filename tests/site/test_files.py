"""The built site: nothing is loaded from another host, tables have room for names, and each page has its Markdown."""

import functools
import http.server
import re
import shutil
import threading
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "build" / "site"
PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_MS = 90_000
WIDTH = 1300
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link(?![^>]*rel=["']?(?:canonical|alternate)))\b[^>]*?\b(?:src|href)=["']?((?:https?:)?//[^\s"'>]+)"""
)
_STYLE = re.compile(r"""(?:url\(|@import\s+)["']?((?:https?:)?//[^\s"')]+)""")


@pytest.fixture(scope="module", autouse=True)
def _site():
    if not (SITE / "index.html").is_file():
        pytest.fail("the site is not built: run `make site`")


def test_no_page_and_no_style_loads_a_file_from_another_host():
    pages = dict.fromkeys(SITE.rglob("*.html"), _LOADED) | dict.fromkeys(SITE.rglob("*.css"), _STYLE)
    assert len(pages) > 20
    found = {page.name: pattern.findall(page.read_text()) for page, pattern in pages.items()}
    assert {name: hosts for name, hosts in found.items() if hosts} == {}


def test_the_check_finds_a_font_and_a_script_of_another_host():
    assert _LOADED.findall('<script async src="https://example.com/a.js">') == ["https://example.com/a.js"]
    assert _LOADED.findall('<link rel=stylesheet href="//example.com/a.css">') == ["//example.com/a.css"]
    assert _STYLE.findall("src: url(https://example.com/a.woff2)") == ["https://example.com/a.woff2"]


def test_each_page_names_its_markdown_and_llms_txt_names_them_all():
    listed = set(re.findall(r"\]\(([\w.-]+\.md)\)", (SITE / "llms.txt").read_text()))
    pages = list(SITE.rglob("index.html"))
    for page in pages:
        href = re.search(r'<link rel="alternate" type="text/markdown" href="([^"]+)">', page.read_text())
        twin = (page.parent / href[1]).resolve()
        assert twin.read_text().startswith("# ")
        assert not re.search(r"^::: ", twin.read_text(), re.MULTILINE), "a directive of the site's builder"
        assert twin.name in listed
    assert len(listed) == len(pages)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as library:
        own = library.chromium.executable_path
        program = own if Path(own).exists() else next(filter(None, map(shutil.which, PROGRAMS)), None)
        if program is None:
            pytest.skip("no browser is here: install Debian's chromium, or run `playwright install chromium`")
        browser = library.chromium.launch(executable_path=program, timeout=DEADLINE_MS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url():
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=SITE)
    ) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


MEASURE = """() => [...document.querySelectorAll("article table")].flatMap(table => {
    const room = table.closest("article").getBoundingClientRect().right
    const tooWide = table.getBoundingClientRect().right > room + 1 ? [`table of ${table.rows[0].innerText}`] : []
    const broken = [...table.querySelectorAll("td:first-child code")].filter(code => code.getClientRects().length > 1)
    return [...tooWide, ...broken.map(code => code.innerText)]
})"""


@pytest.mark.parametrize("page", ["options", "metrics", "lease-algorithm", "consumer", "spark", "operations"])
def test_tables_fit_and_break_no_name(page, browser, url):
    view = browser.new_page(viewport={"width": WIDTH, "height": 1000})
    hosts = set()
    view.on("request", lambda request: hosts.add("/".join(request.url.split("/")[:3])))
    view.goto(f"{url}/{page}/", timeout=DEADLINE_MS)
    assert view.evaluate(MEASURE) == []
    view.close()
    assert hosts == {url}
