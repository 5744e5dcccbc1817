"""The menu of versions: sites that Sphinx builds with the settings of docs/conf.py, in a browser."""

import functools
import http.server
import json
import re
import subprocess
import sys
import threading

import pytest
from docs_tools import needs_sphinx
from in_browser import CHROMIUM, needs_browser
from repository import ROOT

CONF = """
import runpy
settings = runpy.run_path({conf!r})
NAMES = "html_theme", "html_js_files", "html_css_files"
globals().update({{name: settings[name] for name in NAMES}})
templates_path, html_static_path = [{docs!r} + "/_templates"], [{docs!r} + "/_static"]
project, version = "Amanda", {version!r}
"""
SCRIPT = """<script>setTimeout(() => {
  const menu = document.querySelector(".version-menu");
  document.title = JSON.stringify({ hidden: menu.hidden, here: menu.querySelector("select").value,
    names: [...menu.querySelectorAll("option")].map(option => option.value), page: location.pathname });
}, 500);
</script>"""
# A page in a frame, in whose menu a version is chosen.
CHOOSE = """<iframe src="/PAGE"></iframe><script>
const [frame] = document.getElementsByTagName("iframe");
setTimeout(() => {
  const select = frame.contentDocument.querySelector(".version-menu select");
  select.value = "NAME"; select.dispatchEvent(new Event("change"));
}, 1000);
setTimeout(() => { document.title = JSON.stringify(frame.contentWindow.location.pathname); }, 4000);
</script>"""


def build(folder, version, pages=("index",)):
    """Returns the folder with what Sphinx wrote for a version."""
    source = folder / f"source-{version}"
    for page in pages:
        path = source / f"{page}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f":orphan:\n\n{page}\n{'=' * len(page)}\n")
    (source / "conf.py").write_text(
        CONF.format(conf=str(ROOT / "docs" / "conf.py"), docs=str(ROOT / "docs"), version=version)
    )
    html = folder / f"html-{version}"
    subprocess.run([sys.executable, "-m", "sphinx", "-q", source, html], check=True, cwd=ROOT)
    return html


def add(html, site):
    script = ROOT / "scripts" / "docs_site.py"
    return subprocess.run([sys.executable, script, html, site], capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs")
    for version, pages in {
        "0.9": ("index",),
        "0.10": ("index", "tools/flops"),
        "main": ("index", "tools/flops"),
    }.items():
        done = add(build(folder, version, pages), folder / "site")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"[docs] {folder}/site/{version}/index.html\n"
    return folder / "site"


@pytest.fixture
def server(site):
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def visit(address, folder):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync"]
    command += [f"--user-data-dir={folder}", "--virtual-time-budget=5000", "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return json.loads(re.search("<title>(.*?)</title>", done.stdout, re.S)[1].replace("&quot;", '"'))


def instrument(site):
    """Lets each page say in its title what its menu shows."""
    for page in site.glob("*/**/*.html"):
        page.write_text(page.read_text().replace("</body>", SCRIPT + "</body>"))


@needs_sphinx
def test_a_site_has_its_versions_and_leads_to_the_newest(site):
    assert (site / "versions.js").read_text() == 'window.amandaVersions = ["0.10", "0.9", "main"];\n'
    assert "url=0.10/index.html" in (site / "index.html").read_text()


@needs_sphinx
@needs_browser
def test_the_menu_names_the_versions_on_every_page(site, server, tmp_path):
    instrument(site)
    versions = ["0.10", "0.9", "main"]
    for page, here in (("0.9/index.html", "0.9"), ("main/tools/flops.html", "main")):
        assert visit(f"{server}/{page}", tmp_path) == {
            "hidden": False, "here": here, "names": versions, "page": f"/{page}",
        }  # fmt: skip
    assert visit((site / "0.9" / "index.html").as_uri(), tmp_path)["names"] == versions


@needs_sphinx
@needs_browser
def test_the_menu_opens_the_same_page_or_the_first_one(site, server, tmp_path):
    for name, page in (("0.10", "/0.10/tools/flops.html"), ("0.9", "/0.9/index.html")):
        text = CHOOSE.replace("PAGE", "main/tools/flops.html").replace("NAME", name)
        (site / "frame.html").write_text(f"<title></title>{text}")
        assert visit(f"{server}/frame.html", tmp_path) == page


@needs_sphinx
@needs_browser
def test_a_site_alone_has_no_menu(tmp_path):
    html = build(tmp_path, "0.1")
    instrument(tmp_path)
    assert visit((html / "index.html").as_uri(), tmp_path / "browser")["hidden"]


def test_what_is_no_site_is_refused(tmp_path):
    done = add(tmp_path, tmp_path / "site")
    assert (done.returncode, done.stderr) == (1, f"[docs] {tmp_path} has no objects.inv: run make docs first\n")
    assert not (tmp_path / "site").exists()
