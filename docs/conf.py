"""Sphinx settings of the site. tools/build_site.py puts it beside the sources in build/site-source."""

import pathlib
import re

import ropepool

project = "ropepool"
author = "the ropepool authors"
copyright = author
release = version = ropepool.__version__
language = "en"

extensions = ["breathe", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
default_role = "py:obj"
primary_domain = "py"
highlight_language = "none"
nitpicky = False
keep_warnings = False

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4

breathe_projects = {"ropepool": str(pathlib.Path(__file__).parent.parent / "site-work" / "doxygen" / "xml")}
breathe_default_project = "ropepool"
breathe_domain_by_extension = {"h": "cpp"}
breathe_domain_by_file_pattern = {"*/c_api.h": "c"}
breathe_show_include = False
cpp_id_attributes = ["ROPEPOOL_API"]
c_id_attributes = ["ROPEPOOL_API"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_custom_sections = ["Threads"]
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "ropepool"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_extra_path = ["_extra"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False  # it fetches pages, which does not work where the site is read from a folder
html_use_index = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0b57a4",
        "color-brand-content": "#0b57a4",
        "color-brand-visited": "#6a3a9c",
        "color-foreground-muted": "#595d63",
        "color-problematic": "#a11212",
        "color-api-name": "#0b57a4",
        "color-api-pre-name": "#0b57a4",
    },
    "dark_css_variables": {
        "color-brand-primary": "#7db8ff",
        "color-brand-content": "#7db8ff",
        "color-brand-visited": "#c9a6f5",
        "color-foreground-muted": "#a2a7ad",
        "color-problematic": "#ff9a9a",
        "color-api-name": "#7db8ff",
        "color-api-pre-name": "#7db8ff",
    },
}

# Nothing here is mailed, and what looks like an e-mail address or a quote is code.
smartquotes = False


def literal_blocks(app, what, name, obj, options, lines):
    """Keeps tables and formulas in docstrings, indented behind a line that ends in a colon or comma, as they are laid out."""
    section = None  # the indent that a numpydoc section's own lines may have is not literal
    result = []
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and re.fullmatch(r"-{3,}", lines[number + 1]):
            section = line
        above = next((before for before in reversed(result) if before.strip()), "")
        starts = line.startswith("    ") and section is None and not above.startswith("    ")
        if starts and (above.endswith(":") or above.endswith(",")):
            while result and not result[-1].strip():
                result.pop()
            result += ["", "::", ""]
        result.append(line)
    lines[:] = result


def finish_page(app, pagename, templatename, context, doctree):
    """Lets the keyboard scroll code that is wider than the page, and gives the pages that search errors their scripts."""
    if context.get("body"):
        body = context["body"].replace("<pre>", '<pre tabindex="0">')
        # Markdown has no table without a heading row; an empty one is nothing to read out.
        context["body"] = re.sub(r"<thead>(?:\s|</?tr[^>]*>|<th[^>]*>\s*(?:<p>\s*</p>)?\s*</th>)*</thead>", "", body)
    if pagename in ("index", "search"):
        app.add_js_file("errors-data.js")
        app.add_js_file("error-search.js")


def setup(app):
    # Before napoleon, which comes at 500.
    app.connect("autodoc-process-docstring", literal_blocks, priority=400)
    app.connect("html-page-context", finish_page)
