"""The examples of the guide: each runs, and prints what stands below it."""

import pathlib
import re
import subprocess
import sys

import pytest

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "guide"


def examples():
    """Of each page, its blocks of Python and the block of text behind each."""
    for page in sorted(GUIDE.glob("*.md")):
        blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
        for number, (language, code) in enumerate(blocks):
            if language == "python":
                yield pytest.param(code, (*blocks, ("nothing", ""))[number + 1], id=f"{page.stem}-{number}")


EXAMPLES = list(examples())


def test_there_are_examples():
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("code, following", EXAMPLES)
def test_an_example_prints_what_stands_below_it(code, following):
    language, text = following
    assert language == "text"
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, text, "")
