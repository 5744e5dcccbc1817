"""Makes the picture in docs/reports.md: `python scripts/report_picture.py docs/images/report.png`. It needs Chromium.

`amanda run` makes the page of examples/python/train_digits.py, and Chromium takes the picture of its upper part.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "python"
SIZE = (1400, 1500)
RUN = ["-m", "amanda", "run", "-t", "profile(backward=True)", "-t", "memory", "--html", "page.html", "train_digits.py"]


def main(path):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("no Chromium here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(EXAMPLES / "train_digits.py", folder)
        subprocess.run([sys.executable, *RUN], cwd=folder, check=True)
        # Time is virtual: the browser does not stop before the charts are drawn.
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
        options += [f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={Path(path).resolve()}"]
        subprocess.run([browser, *options, (Path(folder) / "page.html").as_uri()], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
