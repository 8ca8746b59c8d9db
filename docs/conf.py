"""The documentation site: `make docs` writes docs/_build/html; nothing is fetched."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from nediff import __version__

project, author, release = "nediff", "The nediff authors", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_heading_anchors = 4
exclude_patterns = ["_build", "results/**/models/**"]
html_theme = "furo"
html_title = f"nediff {__version__}"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
add_module_names = False
suppress_warnings = ["myst.header"]  # results begin with the heading their generator gives them

NOT_EVERYWHERE = ("clusters", "app", "reliability")
"""Pages that some versions do not have: listed in the contents if they are there."""


TITLES = {
    "results/noise/levels": "How well the noise is told from noisy images",
    "results/noise/learned": "How well the noise is learned by a network",
    "results/noise/detection": "How often each warning fires",
}
"""Of results that their generators write without one, to be put into another page."""


def as_page(app, docname, source):
    """Contents without pages that are not there; results with a title, and no links to folders."""
    if docname == "index":
        here = Path(__file__).parent
        missing = [name for name in NOT_EVERYWHERE if not (here / f"{name}.md").is_file()]
        source[0] = "\n".join(line for line in source[0].split("\n") if line not in missing)
    if docname in TITLES:
        source[0] = f"# {TITLES[docname]}\n\n{source[0]}"
    source[0] = source[0].replace("[pieces](pieces)", "`pieces`")


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", as_page)
