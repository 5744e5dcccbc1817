"""Pages in a browser: a script does what a user would, and the test gets what it found."""

import html
import json
import re
import shutil
import subprocess

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")

# What the page complains of is collected from its first line on.
BEFORE = """<script>
const complaints = [];
requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 16); // without a screen there are no frames
for (const kind of ["error", "warn"]) {
  const was = console[kind];
  console[kind] = (...parts) => { complaints.push(parts.join(" ")); was.apply(console, parts); };
}
addEventListener("error", event => complaints.push(String(event.message)));
addEventListener("unhandledrejection", event => complaints.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => complaints.push(`blocked: ${event.blockedURI}`));
</script>"""
AFTER = """<script>
const pause = ms => new Promise(done => setTimeout(done, ms));
const section = heading => [...document.querySelectorAll("section")].find(
  found => found.dataset.heading === heading);
const all = (selector, place = document) => [...place.querySelectorAll(selector)];
const column = async (place, number, most = 200) => { // of a table, of which the page has the rows that can be seen
  const [pane] = all(".pane", place), texts = [];
  for (pane.scrollTop = 0; ; pane.scrollTop += pane.clientHeight) {
    const before = texts.length;
    pane.dispatchEvent(new Event("scroll"));
    for (const row of all("tr[aria-rowindex]", pane)) {
      texts[row.ariaRowIndex - 2] = row.cells[number - 1].textContent;
    }
    if (texts.length >= most || texts.length === before) return texts.slice(0, most);
  }
};
const mouse = (target, kind, x, y) => target.dispatchEvent(new MouseEvent(kind, {
  bubbles: true, cancelable: true, view: window, clientX: x, clientY: y, buttons: kind === "mouseup" ? 0 : 1 }));
(async () => {
  const found = {};
  try {
    await pause(500);
    while (document.querySelector("[aria-busy]")) await pause(10);
    SCRIPT
  } catch (error) {
    complaints.push(String(error.stack));
  }
  const result = document.createElement("pre");
  result.id = "result-of-the-test";
  result.textContent = JSON.stringify({ found, complaints });
  document.body.append(result);
})();
</script>"""


def visit(page, script, tmp_path, width=1200):
    """What `script` puts into `found`; what the page complained of; the addresses that the browser asked for.

    The script is JavaScript. It has `section(heading)`, `all(selector, place)`, `await column(place, number)`,
    `mouse(...)`, `pause(ms)`, and the page's own functions; time is the browser's, and takes none.
    """
    text = page.replace("<head>", "<head>" + BEFORE, 1)
    text = text.replace("</body>\n</html>", AFTER.replace("SCRIPT", script) + "</body>\n</html>")
    (tmp_path / "visited.html").write_text(text)
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    # The browser's own requests, for updates and the time of day, find no host.
    command += ["--disable-background-networking", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND"]
    command += [f"--user-data-dir={tmp_path / 'browser'}", f"--log-net-log={tmp_path / 'net.json'}"]
    command += [f"--window-size={width},900", "--virtual-time-budget=20000", "--dump-dom"]
    done = subprocess.run([*command, (tmp_path / "visited.html").as_uri()], capture_output=True, text=True)
    result = re.search(r'<pre id="result-of-the-test">(.*?)</pre>', done.stdout, re.S)
    assert result is not None, done.stderr
    visited = json.loads(html.unescape(result[1]))
    return visited["found"], visited["complaints"], _addresses((tmp_path / "net.json").read_text())


def _addresses(log):
    """What pages ask for over a network. What the browser asks for itself has no page that asks."""
    events = [event.get("params", {}) for event in json.loads(log)["events"]]
    asked = [event["url"] for event in events if event.get("initiator", "not an origin") != "not an origin"]
    return sorted({url for url in asked if not url.startswith(("file:", "data:", "blob:"))})
