"""docs/performance.md is what tools/performance_page.py makes of the results that are in the repository."""

import pathlib
import subprocess
import sys

GENERATOR = pathlib.Path(__file__).resolve().parents[2] / "tools" / "performance_page.py"


def test_the_page_is_current():
    run = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
