"""The API reference: Python from docstrings, C++ from the headers that Doxygen has read. Run by `make reference`."""

import sys
from pathlib import Path

import amanda

sys.path.insert(0, str(Path(__file__).parent))

project = "Amanda"
version = release = amanda.__version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "breathe", "header_directive"]
html_theme = "furo"
html_title = f"Amanda {version}: API reference"
html_copy_source = False

default_role = "py:obj"  # a link if `name` is in the reference, else code
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_use_rtype = False

breathe_projects = {"amanda": "../../build/reference/doxygen/xml"}
breathe_default_project = "amanda"
breathe_default_members = ("members",)
breathe_show_include = True
