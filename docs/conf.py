"""Sphinx configuration of the documentation (`make docs`); it needs no network."""

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "isotherm"
author = copyright = "the isotherm developers"
release = version = installed_version("isotherm")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docstrings",  # docs/_ext
    "mathml",  # docs/_ext
    "results",  # docs/_ext: tables, and the report
]
exclude_patterns = ["_build", "headlines.md"]
myst_enable_extensions = ["amsmath", "dollarmath", "colon_fence"]
myst_heading_anchors = 3

napoleon_google_docstring = False
napoleon_use_param = False  # "grad_fn, step_size, noise" is one entry of our parameter lists
napoleon_use_ivar = True
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
python_maximum_signature_line_length = 88
python_trailing_comma_in_multi_line_signatures = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_math_renderer = "mathml"
html_title = f"isotherm {release}"
html_static_path = ["_static"]
html_css_files = ["isotherm.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#a63d00", "color-brand-content": "#a63d00"},
    "dark_css_variables": {"color-brand-primary": "#ff9b5c", "color-brand-content": "#ff9b5c"},
}
