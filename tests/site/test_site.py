"""The built site, as files and in a browser: ./dev test site builds it and runs this."""

import collections.abc
import html.parser
import json
import pathlib
import posixpath
import random
import shutil
import string
import subprocess
import sys
import tomllib
import urllib.parse

import pytest
import ropepool
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "build" / "site"
SCREENSHOTS = ROOT / "build" / "site-screenshots"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
ENTRIES = ropepool.errors()
# With what is not in the JSON: `expected` and `elsewhere`.
CATALOG = {
    entry["code"]: entry for entry in tomllib.loads((ROOT / "errors" / "catalog.toml").read_text(encoding="utf-8"))["error"]
}
SEED = "v shape must match k shape, got (4, 10, 64) vs (4, 2, 64)"
TRACEBACK = f"""INFO:     Started server process [6021]
2026-01-05 10:11:12 WARNING loading shapes: q must be loaded first, got nothing
Traceback (most recent call last):
  File "/srv/engine/worker.py", line 211, in step
    out = self.model.forward(batch)
  File "/srv/engine/rope.py", line 88, in forward
    q, k, _, _ = rope_pool_fused(q, k, v, positions, slots, k_pool, v_pool, head_dim=64)
ValueError: {SEED}
[rank0]: worker 3 exited with code 1
"""


def test_the_site_is_built_and_whole() -> None:
    assert (SITE / "index.html").is_file(), "run tools/build_site.py first"
    for entry in ENTRIES:
        assert entry["url"] in PAGES
    for page in ("quick-start", "concepts", "contract", "python", "cpp", "c", "command-line"):
        assert f"guide/{page}.html" in PAGES
    assert {"architecture.html", "decisions/index.html", "changelog.html", "errors/index.html", "search.html"} <= set(PAGES)


def test_nothing_is_missing_from_what_the_site_is_made_of() -> None:
    unwritten = [page for page in PAGES if "Not written yet." in read(page).text]
    assert not unwritten
    for entry in ENTRIES:
        for key, value in entry.items():
            assert value, f"{entry['code']}: {key} is empty"
            assert all(value.values()) if isinstance(value, dict) else True, f"{entry['code']}: a part of {key} is empty"


def test_every_public_header_is_in_the_guide() -> None:
    guide = read("guide/cpp.html").text + read("guide/c.html").text
    for header in (ROOT / "include" / "ropepool").glob("*.h"):
        assert header.name in {"export.h", "ropepool.h"} or header.name in guide


def test_everything_in_python_is_in_the_guide() -> None:
    listed = {f"ropepool.{name}" for name in ropepool.__all__ if not name.startswith("__")}
    assert listed - read("guide/python.html").ids == set()


# ---- Files


class Document(html.parser.HTMLParser):
    """What the tests ask of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.headings: list[int] = []
        self.language = self.title = self.text = ""
        self.unnamed_images: list[str] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, pairs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in pairs}
        self._inside.append(tag)
        self.ids |= {attributes[key] for key in ("id", "name") if key in attributes}
        if tag == "html":
            self.language = attributes.get("lang", "")
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif "href" in attributes and tag == "link":
            self.resources.append(attributes["href"])
        for key in ("src", "srcset", "data", "poster"):
            if key in attributes and tag != "a":
                self.resources.append(attributes[key])
        if tag == "img" and "alt" not in attributes:
            self.unnamed_images.append(attributes.get("src", ""))
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._inside and self._inside[-1] == "title" and "svg" not in self._inside:
            self.title += data
        if not {"script", "style"} & set(self._inside):
            self.text += data


READ: dict[str, Document] = {}


def read(page: str) -> Document:
    if page not in READ:
        READ[page] = Document((SITE / page).read_text(encoding="utf-8"))
    return READ[page]


def is_external(target: str) -> bool:
    return bool(urllib.parse.urlsplit(target).scheme or target.startswith("//")) and not target.startswith("data:")


def missing(page: str, target: str) -> str:
    """What is wrong with a link of a page, or nothing."""
    path, _, anchor = target.partition("#")
    path = urllib.parse.unquote(path.partition("?")[0])
    file = posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
    if file.startswith("..") or not (SITE / file).is_file():
        return f"{page}: {target}: no such file"
    if anchor and file.endswith(".html") and urllib.parse.unquote(anchor) not in read(file).ids:
        return f"{page}: {target}: no such place"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere_and_nothing_comes_from_elsewhere(page: str) -> None:
    document = read(page)
    assert [target for target in document.resources if is_external(target)] == []
    targets = [target for target in document.links + document.resources if not is_external(target) and target[:5] != "data:"]
    assert [fault for target in targets if (fault := missing(page, target))] == []


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_what_they_are(page: str) -> None:
    document = read(page)
    assert document.language == "en"
    assert document.title.strip()
    assert not document.unnamed_images
    assert document.headings.count(1) == 1
    steps = zip(document.headings, document.headings[1:], strict=False)
    assert all(after <= before + 1 for before, after in steps), document.headings


def test_titles_differ() -> None:
    titles = [read(page).title for page in PAGES]
    assert len(set(titles)) == len(titles)


def test_styles_load_nothing_from_elsewhere() -> None:
    for path in SITE.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert "url(http" not in text and "url(//" not in text and "@import" not in text, path


def test_pages_name_no_path_of_the_machine_that_built_them() -> None:
    for path in [path for path in SITE.rglob("*") if path.suffix in {".html", ".js", ".json", ".inv", ".txt"}]:
        assert str(ROOT) not in path.read_text(encoding="utf-8", errors="replace"), path


# ---- JSON


def test_json_is_that_of_the_tool() -> None:
    tool = pathlib.Path(sys.executable).parent / "ropepool"
    listed = json.loads(subprocess.run([tool, "errors", "--json"], capture_output=True, check=True).stdout)
    assert json.loads((SITE / "api/errors/index.json").read_text(encoding="utf-8")) == listed == ENTRIES
    for entry in listed:
        assert json.loads((SITE / f"api/errors/{entry['code']}.json").read_text(encoding="utf-8")) == entry
    assert len(list((SITE / "api/errors").iterdir())) == len(listed) + 1


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry["code"])
def test_an_error_page_says_all_of_its_entry(entry: ropepool.ErrorEntry) -> None:
    def plain(text: str) -> str:
        return " ".join(text.replace("`", "").split())

    document = read(entry["url"])
    said = plain(document.text)
    for text in (entry["code"], entry["name"], entry["message"], entry["meaning"], entry["trigger"], entry["guard"]):
        assert plain(text) in said
    for text in (*entry["situations"], *entry["solutions"], entry["where"]["file"], entry["where"]["function"]):
        assert plain(text) in said
    for script in (entry["example"]["failing"], entry["example"]["mended"]):
        assert all(plain(line) in said for line in script.splitlines())
    for text in (*CATALOG[entry["code"]].get("expected", []), *CATALOG[entry["code"]].get("elsewhere", [])):
        assert plain(text) in said
    assert {f"{code}.html" for code in entry["related"]} <= set(document.links)
    assert f"../api/errors/{entry['code']}.json" in document.links
    # The order of the seed page.
    names = [
        "Error message",
        "What it means",
        "Source",
        "Solutions",
        "Example fix",
        "Guard",
        "When it happens",
        *(["What others say of it"] if "elsewhere" in CATALOG[entry["code"]] else []),
        "Related errors",
    ]
    body = (SITE / entry["url"]).read_text(encoding="utf-8")
    places = [body.find(f"<h2>{name}") for name in names]
    assert places == sorted(places) and -1 not in places


# ---- In a browser


@pytest.fixture(scope="session")
def browser() -> collections.abc.Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


class Visit:
    """A page in a browser without a network, read from its folder as a stranger reads it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.elsewhere: list[str] = []
        self.complaints: list[str] = []
        page.on(
            "request", lambda request: self.elsewhere.append(request.url) if request.url[:5] not in ("file:", "data:") else None
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)

    def to(self, page: str) -> Page:
        self.page.goto((SITE / page.partition("?")[0]).as_uri() + "".join(page.partition("?")[1:]))
        return self.page


@pytest.fixture
def visit(browser: Browser) -> collections.abc.Iterator[Visit]:
    context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
    visit = Visit(context.new_page())
    yield visit
    assert visit.elsewhere == [] and visit.complaints == []
    context.close()


def results(page: Page) -> list[str]:
    return page.locator("#error-results .code").all_inner_texts()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (SEED, "RP006"),
        (f"ValueError: {SEED}", "RP006"),
        (TRACEBACK, "RP006"),
        ("V SHAPE must match K shape, got torch.Size([1, 2, 3]) vs torch.Size([7])", "RP006"),
        ("RP006", "RP006"),
        ("rp6", "RP006"),
        ("6", "RP006"),
        ("v-shape-mismatch", "RP006"),
        ("positions must be int32 or int64, got float32", "RP013"),
        ("q_out must be (4, 8, 64), got (32, 8, 64)", "RP017"),
        ("RuntimeError: shape '[4, 2, 64]' is invalid for input of size 2560", "RP006"),
        ("slots[3] is 99, but the pools have 16 slots", "RP020"),
        ("byte offset or hash", "RP021"),
        ("two axes num_slots pages", "RP003"),
        ("read-only", "RP017"),
    ],
)
def test_search_finds_as_you_type(visit: Visit, text: str, code: str) -> None:
    page = visit.to("index.html")
    page.get_by_label("Error message, traceback").fill(text)
    assert code in results(page)[:3]
    if ropepool_finds(text):
        assert results(page)[0] == code
        expect(page.get_by_role("status")).to_contain_text(code)
    else:
        expect(page.get_by_role("status")).to_contain_text("result")


def ropepool_finds(text: str) -> str | None:
    try:
        return ropepool.explain(text)["code"]
    except LookupError:
        return None


def test_search_says_where_there_is_nothing(visit: Visit) -> None:
    page = visit.to("index.html")
    query = page.get_by_label("Error message, traceback")
    for text in ("zzz", "99", "0", TRACEBACK.replace("v shape", "shape").replace("loading shapes", "loading")):
        query.fill(text)
        assert results(page) == []
        assert page.get_by_role("status").inner_text()
    query.fill("  ")
    assert results(page) == [] and page.get_by_role("status").inner_text() == ""


def filled(text: str, source: random.Random) -> str:
    """With something for each {placeholder}."""
    while "{" in text:
        value = source.choice(["(4, 10, 64)", "", "torch.float64", "a\nb", "7"])
        text = text[: text.index("{")] + value + text[text.index("}") + 1 :]
    return text


def test_search_finds_what_explain_finds(visit: Visit) -> None:
    """The page and the library have one meaning of "fits": on all messages, filled in and hurt at random, and in logs."""
    page = visit.to("index.html")
    source = random.Random(6)
    texts = [
        SEED,
        TRACEBACK,
        "",
        " 6\n",
        "006",
        "0006",
        "00006",
        "rp-6",
        "RP 6",
        "xrp6",
        "rp6x",
        "rp99 rp7",
        "rp99 rp007",
        "bla rp 3 bla",
        "see RP-006.",
        "see rp-06",
        "-rp006",
        "rp006-rp007 rp008",
        "rprp006 rp022 rp002 rp003",
        "xrp001\n\trp-002_ rp-003",
        "pinctrl-rp1 1f000d0000.gpio: ok\nValueError: " + SEED,
        "pinctrl-rp001: ok\nValueError: " + SEED,
        "rp22",
        "rp0",
        "-6",
        "6.0",
        "k must have shape (batch, heads, seq, dim), got (1, 2)",
        "q must have 4 dimensions, got 3",
        "angles must be in radians, got degrees",
        "k_pool must be contiguous, got strides",
        "\33[1;31mValueError\33[0m: v shape \33[4mmust match\33[24m k shape, got (1,) vs (2,)",
        "v shape must\33[K match k shape, got (1,) vs (2,)\33[",
        "v shape must match\33[31\33[0m k shape, got (1,) vs (2,)",
        "\33]0;title\7v shape must match k shape, got (1,) vs (2,)",
        "rp\33[7m6\33[0m",
    ]
    texts += [
        f"v shape must match k shape, got {letter * count} vs 7" for letter in "7é" for count in (497, 498, 995, 996, 997)
    ]
    for entry in ENTRIES:
        message, arguments = entry["message"], entry["argument"].split(", ")
        expected = [*CATALOG[entry["code"]].get("expected", []), "contiguous", "a multiple of 8"]
        for _ in range(12):
            text = message.replace("{argument}", source.choice([*arguments, "x", "my_" + arguments[0]]))
            text = filled(text.replace("{expected}", source.choice(expected)), source)
            if source.random() < 0.3:
                at = source.randrange(len(text))
                text = text[:at] + source.choice(string.punctuation + "aZ \n") + text[at + 1 :]
            before, after = (
                source.choice(["", "ValueError: ", "[rank0] ", "x", "noise rp\n", "é"]),
                source.choice(["", "\n", " .", "_"]),
            )
            texts.append(before + text + after)
        texts += [entry["code"], entry["name"], entry["name"].upper(), f" {entry['name']}\n", message, f"see {entry['url']}"]
        for other in CATALOG[entry["code"]].get("elsewhere", []):
            raised = TRACEBACK.replace(SEED, f"{filled(other, source)} ... \33[0m")
            texts += [other, raised, raised.upper(), raised.replace(" of ", " for ").replace(" in", " on"), TRACEBACK + raised]
    log = "".join(
        TRACEBACK.replace(SEED, text[:200]) for text in source.sample([text for text in texts if len(text) > 20], 300)
    )
    texts += [log, log.replace("RP", "").replace("rp", ""), log.replace("\n", " "), TRACEBACK.replace(SEED, "no slot") * 5000]
    found = page.evaluate("texts => texts.map(text => window.findErrors(text).match?.code ?? null)", texts)
    for text, code in zip(texts, found, strict=True):
        assert code == ropepool_finds(text), repr(text[:2000])
    assert 100 < sum(code is not None for code in found) < len(found)


def test_search_by_keyboard(visit: Visit) -> None:
    page = visit.to("index.html")
    page.keyboard.press("/")
    page.keyboard.type("pool dtype")
    assert len(results(page)) > 1
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    links = page.locator("#error-results a")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#error-query")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Escape")
    expect(page.locator("#error-query")).to_be_focused()
    page.keyboard.press("ArrowDown")
    chosen = results(page)[0]
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/errors/{chosen}.html")
    assert chosen in page.title()


def test_enter_opens_the_first_result_of_a_pasted_traceback(visit: Visit) -> None:
    page = visit.to("index.html")
    page.locator("#error-query").focus()
    page.keyboard.insert_text(TRACEBACK)
    page.keyboard.press("Enter")
    page.wait_for_url("**/errors/RP006.html")
    expect(page.get_by_role("heading", level=1)).to_contain_text("RP006 v-shape-mismatch")
    page.get_by_role("link", name="RP005").first.click()
    page.wait_for_url("**/errors/RP005.html")


def test_a_search_has_an_address(visit: Visit) -> None:
    page = visit.to("index.html?q=rp6")
    assert results(page) == ["RP006"]


def test_the_search_of_the_guide_knows_errors_too(visit: Visit) -> None:
    page = visit.to("index.html")
    page.locator(".sidebar-search").fill(f"ValueError: {SEED}")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search.html?**")
    assert page.locator("[role=main] .error-list .code").all_inner_texts() == ["RP006"]
    page = visit.to("search.html?q=interleaved")
    expect(page.locator("#search-results ul.search a").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_every_page_fits_and_reads(browser: Browser, scheme: str, width: int) -> None:
    """No sideways scrolling, the scheme's background, and what axe-core checks: contrast, landmarks, names, order."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 780}, offline=True)  # type: ignore[arg-type]
    visit = Visit(context.new_page())
    examined = {"index.html", "search.html", "errors/index.html", "errors/RP006.html", "architecture.html"}
    examined |= {page for page in PAGES if page.startswith("guide/")} - ({"guide/cpp.html"} if width < 1000 else set())
    for name in PAGES:
        page = visit.to(name)
        wide, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= inner, f"{name}: {wide} > {inner}"
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        brightness = sum(int(part) for part in background.strip("rgba()").split(",")[:3]) / 3
        assert (brightness < 60) if scheme == "dark" else (brightness > 200), f"{name}: {background}"
        loaded = page.evaluate("performance.getEntriesByType('resource').map(entry => entry.name)")
        assert all(address.startswith(("file:", "data:")) for address in loaded), loaded
        assert page.get_by_role("main").count() == 1, f"{name}: no main"
        assert page.get_by_role("navigation").count() >= (width > 1000), f"{name}: no navigation"
        if name in examined and (width < 1000) == (scheme == "dark"):  # it takes its time
            # The boxes that open a narrow window's drawers stand before all landmarks, as the link to the content does.
            ours = {"exclude": [["#__navigation"], ["#__toc"]]}
            quickly = {"preload": False, "resultTypes": ["violations"]}
            faults = Axe().run(page, ours, quickly).response["violations"]
            assert not faults, f"{name}: " + "; ".join(
                f"{fault['id']}: {[node['target'] for node in fault['nodes']][:4]}" for fault in faults
            )
    assert visit.elsewhere == [] and visit.complaints == []
    context.close()


def test_the_keyboard_opens_the_drawers_of_a_narrow_window(browser: Browser) -> None:
    context = browser.new_context(viewport={"width": 360, "height": 780}, offline=True)
    page = Visit(context.new_page()).to("errors/RP006.html")
    expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()
    page.keyboard.press("Space")
    expect(page.get_by_role("navigation", name="Pages")).to_be_hidden()
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    expect(page.get_by_role("link", name="Related errors")).to_be_visible()
    context.close()


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [("light", "light", 1280), ("dark", "dark", 1280), ("phone", "light", 360), ("phone-dark", "dark", 360)],
)
def test_screenshots(browser: Browser, name: str, scheme: str, width: int) -> None:
    """To be looked at: build/site-screenshots."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}, offline=True)  # type: ignore[arg-type]
    page = Visit(context.new_page()).to("index.html")
    page.locator("#error-query").fill(TRACEBACK)
    page.screenshot(path=SCREENSHOTS / f"start-{name}.png")
    page.goto((SITE / "errors/RP006.html").as_uri())
    page.screenshot(path=SCREENSHOTS / f"RP006-{name}.png", full_page=True)
    context.close()
    assert (SCREENSHOTS / f"RP006-{name}.png").stat().st_size > 10_000
