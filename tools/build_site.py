#!/usr/bin/env python3
"""Build the site into build/site: the error reference, its JSON, and the guide.

    tools/build_site.py            build what is not current
    tools/build_site.py --fresh    build all of it anew

Runs in an environment with the ropepool package and docs/requirements.txt; doxygen must be on PATH. `./dev docs` sees to both.
Sources are docs/, README.md, CHANGELOG.md, the headers, the package's docstrings, `ropepool --help`, and the error reference
as the installed package has it, with what is not in its JSON from errors/catalog.toml. They are laid out in build/site-source,
from where Sphinx builds.
"""

import argparse
import ast
import html
import itertools
import json
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import sys
import textwrap

import generate_errors
import ropepool

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SOURCE = ROOT / "build" / "site-source"
WORK = ROOT / "build" / "site-work"
SITE = ROOT / "build" / "site"

# Where a link to a file of the repository that is no page of the site leads: "" leaves the words without a link.
REPOSITORY_URL = os.environ.get("ROPEPOOL_REPOSITORY_URL", "")

COMMANDS = ("run", "check", "errors", "explain", "rope", "bench", "doctor")


# ---- Text


def escaped(text):
    """Plain text on an error's page as Markdown that shows it as it is; `backticks` make code, codes lead to their pages."""

    def piece(part):
        if len(part) > 2 and part.startswith("`"):
            return part
        return re.sub(r"\bRP\d{3}\b", r"[\g<0>](\g<0>.md)", re.sub(r"([\\`*_{}\[\]()<>#+|~$&!-])", r"\\\1", part))

    return "".join(map(piece, re.split(r"(`[^`]+`)", text)))


def escaped_or_code(text):
    """A solution: words, or nothing but Python."""
    try:
        ast.parse(text)
    except SyntaxError:
        return escaped(text)
    return code_span(text) if "=" in text or "(" in text else escaped(text)


def code_block(text, language="text", caption=""):
    caption = f":caption: {caption}\n" if caption else ""
    return f"````{{code-block}} {language}\n{caption}\n{text.strip(chr(10))}\n````\n"


def code_span(text):
    return f'<code class="docutils literal notranslate">{html.escape(text)}</code>'


# ---- Sources that stand elsewhere in the repository


def pages():
    """Path in the repository -> path in SOURCE, for every page that is written by hand."""
    found = {path.relative_to(ROOT).as_posix(): path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))}
    for path, page in (("README.md", "guide/quick-start.md"), ("CHANGELOG.md", "changelog.md")):
        if (ROOT / path).exists():
            found[path] = page
    return found


def relinked(text, path, known):
    """`text` of the file `path`, with links as they must be where its page stands."""

    def replaced(match):
        words, target = match["words"], match["target"]
        if match["image"] or re.match(r"[a-z]+:|#", target):
            return match[0]
        file, _, anchor = target.partition("#")
        in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(path), file))
        anchor = "#" + anchor if anchor else ""
        for candidate in (in_repository, in_repository + "/index.md", in_repository + "/README.md"):
            if candidate in known:
                return f"[{words}]({posixpath.relpath(known[candidate], posixpath.dirname(known[path]))}{anchor})"
        if in_repository == "docs/decisions":
            return f"[{words}]({posixpath.relpath('decisions/index.md', posixpath.dirname(known[path]))})"
        if not (ROOT / in_repository).exists():
            return match[0]  # a page that is made below; Sphinx complains where it is none
        return f"[{words}]({REPOSITORY_URL}/{in_repository}{anchor})" if REPOSITORY_URL else words

    fenced = re.split(r"(^```.*?^```|^~~~.*?^~~~)", text, flags=re.M | re.S)
    link = re.compile(r"(?P<image>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")
    return "".join(part if part.startswith(("```", "~~~")) else link.sub(replaced, part) for part in fenced)


def quick_start(text):
    """README.md as a page of its own: what it says first is what the site's start page says."""
    return re.sub(r"^# .*$", "# Quick start", text, count=1, flags=re.M)


# ---- The error reference


def shared_beginning(entries):
    """The lines that every example begins with: what sets the arrays up."""
    scripts = [script.splitlines() for entry in entries for script in entry["example"].values() if script]
    return os.path.commonprefix(scripts) if len(scripts) > 2 else []


def excerpt(where):
    """The source of the rule that refuses, and the line it begins in."""
    path = ROOT / where["file"]
    if not path.is_file():
        return "", 0
    text = path.read_text(encoding="utf-8")
    found = re.search(rf"^[\w:<>]+ {re.escape(where['function'])}\([^;]*?\) \{{\n.*?^\}}", text, flags=re.M | re.S)
    return (found[0], text.count("\n", 0, found.start()) + 1) if found else ("", 0)


def error_page(entry, more, entries, setup):
    """The page of one refusal, with `more` of the catalog's than is in the JSON. What is empty is left out."""
    code, name, message = entry["code"], entry["name"], entry["message"]
    by_code = {other["code"]: other for other in entries}
    description = json.dumps(f"{message}: what it means and how to mend it")
    page = [
        "---",
        f"myst: {{html_meta: {{description: {description}}}}}",
        f"title: {json.dumps(f'{code} {name}')}",
        "---",
        '<p class="kind">ropepool · error · ContractError (ValueError)</p>\n',
        f"# {code} {name}\n",
        "## Error message\n",
        code_block(message),
    ]
    if entry["argument"]:
        names = ", ".join(code_span(argument) for argument in entry["argument"].split(", "))
        page += [f"About {names}. Words in braces stand for what the call had.\n" if "{" in message else f"About {names}.\n"]
    if more["expected"]:
        page += [f"In the place of {code_span('{expected}')}: {', '.join(map(code_span, more['expected']))}.\n"]
    if entry["meaning"]:
        page += ["## What it means\n", escaped(entry["meaning"]) + "\n"]
    where = entry["where"]
    if where["file"]:
        source, line = excerpt(where)
        page += ["## Source\n", f"Refused at {code_span(where['file'])}, line {line}, by {code_span(where['function'])}:\n"]
        page += [code_block(source, "cpp")] if source else []
    if entry["solutions"]:
        page += [
            "## Solutions\n",
            *(f"{number}. {escaped_or_code(text)}" for number, text in enumerate(entry["solutions"], 1)),
            "",
        ]
    failing, mended = entry["example"]["failing"], entry["example"]["mended"]
    if failing or mended:
        page += ["## Example fix\n"]
        for script, caption in ((failing, f"Before: raises {code}"), (mended, "After")):
            lines = script.splitlines()
            if setup and lines[: len(setup)] == setup:
                lines = lines[len(setup) :]
            if script:
                page += [code_block("\n".join(lines), "python", caption)]
        if setup:
            page += [
                "<details><summary>What both begin with</summary>\n",
                code_block("\n".join(setup), "python"),
                "</details>\n",
            ]
    if entry["guard"]:
        page += [
            "## Guard\n",
            "To assert before the call; true exactly where this refusal does not apply:\n",
            code_block(f"assert {entry['guard']}", "python"),
        ]
    if entry["trigger"] or entry["situations"]:
        page += ["## When it happens\n"]
        if entry["trigger"]:
            page += ["### Trigger\n", escaped(entry["trigger"]) + "\n"]
        if entry["situations"]:
            page += ["### Common situations\n", *(f"- {escaped(text)}" for text in entry["situations"]), ""]
    if more["elsewhere"]:
        page += [
            "## What others say of it\n",
            "NumPy, PyTorch and others may stumble over the same mistake a step earlier, and ropepool's other ops say it "
            "in words of their own:\n",
            *(f"- {code_span(text)}" for text in more["elsewhere"]),
            "",
        ]
    if entry["related"]:
        page += ["## Related errors\n"]
        page += [
            f"- [{other} {by_code[other]['name']}]({other}.md): {code_span(by_code[other]['message'])}"
            for other in entry["related"]
        ]
        page += [""]
    page += ["## As data\n"]
    page += [f'- <a href="../api/errors/{code}.json">This entry as JSON</a>']
    page += [
        f"- In Python: {code_span(f'ropepool.explain({code!r})')}; in a shell: {code_span(f'ropepool explain {code}')}",
        "",
    ]
    return "\n".join(page)


def error_list(entries, folder):
    """All refusals as a list of links, for a page that stands beside `folder`."""
    lines = [
        f'<li><a href="{folder}{entry["code"]}.html"><span class="code">{entry["code"]}</span> '
        f'<span class="message">{html.escape(entry["message"])}</span> <span class="name">{entry["name"]}</span></a></li>'
        for entry in entries
    ]
    return '<ul class="error-list">\n' + "\n".join(lines) + "\n</ul>\n"


def errors_index(entries):
    tree = "\n".join(entry["code"] for entry in entries)
    return f"""# Error reference

Every refusal there is, in the order in which a call checks its arguments: the first that applies is raised. Codes are the
same in Python, C, the command line and here, and are never given to another refusal.
[Search them](../index.md) by a message with any shapes in it, by code or by words.

{error_list(entries, "")}
All entries as JSON: <a href="../api/errors/index.json">api/errors/index.json</a>, the same as `ropepool errors --json`; one
entry alone as `api/errors/RP006.json`.

```{{toctree}}
:hidden:

{tree}
```
"""


def error_rows(entries):
    rows = [f"| [{entry['code']}](../errors/{entry['code']}.md) | {code_span(entry['message'])} |" for entry in entries]
    return "| code | first line of the message |\n|---|---|\n" + "\n".join(rows) + "\n"


def dumped(value):
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


# ---- The command line


def command_line():
    tool = pathlib.Path(sys.executable).parent / "ropepool"
    if not tool.exists():
        raise SystemExit("the ropepool package in this environment has no command line tool: ./dev setup installs it")

    def help_of(*command):
        text = subprocess.run([tool, *command, "--help"], capture_output=True, text=True, check=True).stdout
        return text.replace(str(tool), "ropepool").strip()

    def without_exit_codes(text):
        return text.split("\nExit codes:")[0]

    page = ["# Command line\n", "The package brings the tool `ropepool`. This is what its `--help` says.\n"]
    page += ["## ropepool\n", code_block(help_of())]
    for command in COMMANDS:
        page += [f"## ropepool {command}\n", code_block(without_exit_codes(help_of(command)))]
    return "\n".join(page)


# ---- The headers


def documented(text):
    """A header whose plain comments are marked for Doxygen; lines that are laid out with spaces stay so.

    Without the namespace, which each page names once, and without C's second name for a struct.
    """
    text = re.sub(r"^namespace ropepool \{$|^\} +// namespace ropepool$", "", text, flags=re.M)
    text = re.sub(r"typedef (struct (\w+) \{.*?\}) \2;", r"\1;", text, flags=re.S)
    if text.startswith("/*"):
        text = re.sub(r"\A/\*(?!\*)", "/** @file\n *", text, count=1)
        text = re.sub(r"^( *)/\* ", r"\1/** ", text, flags=re.M)
        text = re.sub(r"(?<=[,;\d])( +)/\* ", r"\1/**< ", text)
        return re.sub(r"(#endif.*?) /\*.*", r"\1", text)
    lines = [re.sub(r"\s*// NOLINT.*$", "", line) for line in text.splitlines()]
    result, first = [], True
    for is_comment, group in itertools.groupby(lines, lambda line: line.lstrip().startswith("//")):
        if not is_comment:
            result += [re.sub(r"(?<=\S)(\s+)// ", r"\1///< ", line) for line in group]
            continue
        result.append("/** @file" if first else "/**")
        for laid_out, part in itertools.groupby((line.lstrip()[3:] for line in group), lambda line: line.startswith("  ")):
            if laid_out:
                result += ["@verbatim", textwrap.dedent("\n".join(part)), "@endverbatim"]
            else:  # what is said of one argument, or of threads, is a paragraph of its own
                result += [re.sub(r"^(`\w+`|Threads): ", r"\n\g<0>", line) for line in part]
        result.append("*/")
        first = False
    return "\n".join(result) + "\n"


def run_doxygen():
    headers = sorted((ROOT / "include" / "ropepool").glob("*.h"))
    inputs = [*headers, DOCS / "Doxyfile", pathlib.Path(__file__)]
    stamp = WORK / "doxygen.stamp"
    if stamp.exists() and all(path.stat().st_mtime <= stamp.stat().st_mtime for path in inputs):
        return
    include = WORK / "include"
    shutil.rmtree(include, ignore_errors=True)
    (include / "ropepool").mkdir(parents=True)
    for header in headers:
        (include / "ropepool" / header.name).write_text(documented(header.read_text(encoding="utf-8")), encoding="utf-8")
    settings = (DOCS / "Doxyfile").read_text(encoding="utf-8") + f"\nOUTPUT_DIRECTORY = {WORK / 'doxygen'}\n"
    for folder in ("doxygen", "doctrees"):  # Sphinx's notes of the pages name Doxygen's files
        shutil.rmtree(WORK / folder, ignore_errors=True)
    (WORK / "doxygen").mkdir()
    try:
        done = subprocess.run(["doxygen", "-"], input=settings, text=True, cwd=WORK, capture_output=True)
    except FileNotFoundError:
        raise SystemExit("doxygen is missing: ./dev docs installs it") from None
    if done.returncode or done.stderr:
        raise SystemExit(f"doxygen failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    stamp.touch()


# ---- All of it


def sources():
    """Path in SOURCE -> its text."""
    entries = ropepool.errors()
    catalog = {entry["code"]: entry for entry in generate_errors.load_catalog()[1]}
    setup = shared_beginning(entries)
    known = pages()
    found = {}
    for path, page in known.items():
        text = relinked((ROOT / path).read_text(encoding="utf-8"), path, known)
        found[page] = quick_start(text) if path == "README.md" else text
    for page, title in (
        ("guide/quick-start.md", "Quick start"),
        ("changelog.md", "Changelog"),
        ("architecture.md", "Architecture"),
    ):
        found.setdefault(page, f"# {title}\n\nNot written yet.\n")
    if "decisions/index.md" not in found:
        tree = "\n".join(page[len("decisions/") : -len(".md")] for page in found if page.startswith("decisions/"))
        found["decisions/index.md"] = f"# Decisions\n\n```{{toctree}}\n:maxdepth: 1\n\n{tree}\n```\n"
    found["index.md"] = found["index.md"].replace("<!-- error list -->", error_list(entries, "errors/"))
    found["guide/contract.md"] = found["guide/contract.md"].replace("<!-- error rows -->", error_rows(entries))
    found["guide/command-line.md"] = command_line()
    found["errors/index.md"] = errors_index(entries)
    for entry in entries:
        found[f"errors/{entry['code']}.md"] = error_page(entry, catalog[entry["code"]], entries, setup)
        found[f"_extra/api/errors/{entry['code']}.json"] = dumped(entry)
    found["_extra/api/errors/index.json"] = dumped(entries)
    shown = ("code", "name", "message", "argument", "meaning", "trigger", "situations", "solutions", "guard", "url")
    data = [
        {key: entry[key] for key in shown}
        | {"forms": generate_errors.forms(catalog[entry["code"]])}
        | {key: catalog[entry["code"]][key] for key in generate_errors.OPTIONAL}
        for entry in entries
    ]
    found["_static/errors-data.js"] = f"window.ropepoolErrors = {json.dumps(data, ensure_ascii=False)};\n"
    for path in (DOCS / "conf.py", *sorted(DOCS.glob("_static/*")), *sorted(DOCS.glob("_templates/**/*.html"))):
        found[path.relative_to(DOCS).as_posix()] = path.read_text(encoding="utf-8")
    return found


def lay_out(files):
    """Writes what differs and removes what is no more, so that Sphinx reads only what changed."""
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file() and path.relative_to(SOURCE).as_posix() not in files:
            path.unlink()
    for name, text in files.items():
        path = SOURCE / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def remove_stale():
    """Pages and data in the site whose source is no more."""
    made = {"search.html", "genindex.html", "py-modindex.html"}
    for path in SITE.rglob("*.html"):
        name = path.relative_to(SITE)
        if name.as_posix() not in made and not (SOURCE / name.with_suffix(".md")).exists():
            path.unlink()
    for path in SITE.glob("api/errors/*.json"):
        if not (SOURCE / "_extra" / path.relative_to(SITE)).exists():
            path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fresh", action="store_true", help="build all of it anew")
    if parser.parse_args().fresh:
        for folder in (SOURCE, WORK, SITE):
            shutil.rmtree(folder, ignore_errors=True)
    WORK.mkdir(parents=True, exist_ok=True)
    run_doxygen()
    lay_out(sources())
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going"]
    command += ["-d", str(WORK / "doctrees"), str(SOURCE), str(SITE)]
    if status := subprocess.run(command).returncode:
        raise SystemExit(status)
    remove_stale()
    print(f"built {sum(1 for _ in SITE.rglob('*.html'))} pages: {(SITE / 'index.html').relative_to(ROOT)}")


if __name__ == "__main__":
    main()
