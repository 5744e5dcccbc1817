"""Pages: HTML files with figures and tables. It imports jinja2: import it where a page is written."""

from amanda.reports.html_page import HtmlPage

__all__ = ["HtmlPage"]
