"""The documentation as a site: these pages, and the API reference, from docstrings and headers. Run by `make docs`."""

import logging
import sys
from pathlib import Path

import amanda
from jupyter_client import KernelManager

KernelManager.transport_encryption.default_value = "auto"  # without it, each kernel warns on stderr
logging.getLogger("traitlets").setLevel(logging.WARNING)
sys.path.insert(0, str(Path(__file__).parent))

project = "Amanda"
version = release = amanda.__version__
extensions = [
    "myst_nb",  # MyST pages, and tutorials, which it executes
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "breathe",
    "header_directive",
    "name_links",
]
exclude_patterns = ["requirements.txt", "_templates"]
html_theme = "furo"  # with search, and a dark mode
html_title = f"Amanda {version}"
html_copy_source = html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["version_menu.js"]
templates_path = ["_templates"]  # furo has the menu of versions where it has that of a host
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))  # the order of what is found

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_execution_in_temp = True
nb_output_stderr = "remove"  # tests run the same cells with warnings as errors
nb_merge_streams = True

myst_heading_anchors = 4  # links to headings, as in a repository's own pages

default_role = "py:obj"  # a link if `name` is in the reference, else code
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_rtype = False

breathe_projects = {"amanda": "../build/docs/doxygen/xml"}
breathe_default_project = "amanda"
breathe_default_members = ("members",)
breathe_show_include = True
