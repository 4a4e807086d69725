"""How Sphinx builds these pages: ``sphinx-build -W -b html docs docs/_build``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import safemodules as sm

project = "safemodules"
author = "safemodules contributors"
copyright = author  # noqa: A001 - Sphinx asks for this name
version = release = sm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_line",
    "mathml",
]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name types where they matter
autodoc_inherit_docstrings = False
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_custom_sections = [("Shape", "notes_style"), ("Reference", "notes_style")]
python_use_unqualified_type_names = True

nitpicky = True
# Other projects' names; looking them up would need a network.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|nn|collections|typing|enum|asyncio|torchvision)\b.*"),
    ("py:class", r"safemodules\.(\w+\.)+\w+"),  # types of attributes that have no page
    ("py:exc", r"GradcheckError"),  # torch's
    ("py:class", r"(Module|Exception|\w+Error|\w+Warning|object|str|optional)"),
]

html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_title = "safemodules"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": False,
    "header_links_before_dropdown": 7,
    "show_nav_level": 2,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {page: [] for page in ("index", "tutorial", "comparison", "design")}
