"""The timeline page: one HTML file that shows where the time of a step goes, before and after."""

from counterpoint.report.page.render import render_page
from counterpoint.report.page.views import View, view_of

__all__ = ["View", "render_page", "view_of"]
