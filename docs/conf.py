"""Configuration of Sphinx; what is particular to these pages is in ``site_pages.py`` beside it."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from fedgraph import __version__

project = "fedgraph"
author = "The fedgraph authors"
copyright = "The fedgraph authors, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "site_pages",
]
exclude_patterns = ["_build", "gallery", "Thumbs.db"]
templates_path = ["_templates"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "attrs_inline"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autosummary_generate = True
autosummary_ignore_module_all = False
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
# Names of attributes, which Sphinx looks up everywhere, are those of several classes.
suppress_warnings = ["ref.python"]
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

# Copied from the package sphinx-mathjax-offline: the pages need no internet.
mathjax_path = "mathjax/tex-chtml.js"

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_examples",
    "filename_pattern": "/plot_",
    "within_subsection_order": "FileNameSortKey",
    "show_memory": False,
    "min_reported_time": 0,
    "remove_config_comments": True,
    "download_all_examples": False,
    "abort_on_example_error": True,
}

# The other projects' indices are on the internet: without this variable the pages are built without.
if os.environ.get("FEDGRAPH_DOCS_ONLINE"):
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "pandas": ("https://pandas.pydata.org/docs", None),
        "sklearn": ("https://scikit-learn.org/stable", None),
        "torch_geometric": ("https://pytorch-geometric.readthedocs.io/en/latest", None),
        "flwr": ("https://flower.ai/docs/framework", None),
    }

html_theme = "pydata_sphinx_theme"
html_title = "fedgraph"
html_static_path = ["_static"]
html_css_files = ["fedgraph.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "fedgraph"},
    "navbar_align": "left",
    "navbar_persistent": [],
    "navbar_end": ["search-button-field", "theme-switcher"],
    "header_links_before_dropdown": 6,
    "show_prev_next": False,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars = {"index": []}
