"""Sections as charts of Plotly: the data and the layout that `Plotly.newPlot` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from amanda.reports.sections import Curve, Icicle, Section, Timeline

Chart = dict[str, Any]
TRACK_HEIGHT = 90  # pixels


def library() -> str:
    """The source code of plotly.js, which a page holds."""
    import plotly.offline  # here: it takes a while

    return str(plotly.offline.get_plotlyjs())


def chart_of(section: Section) -> Chart | None:
    """The chart of a section; None if the section is no chart."""
    draw = _CHARTS.get(type(section))
    return draw(section) if draw is not None else None


def _icicle(section: Icicle) -> Chart:
    ids = [str(position) for position in range(len(section.labels))]
    trace = {
        "type": "icicle",
        "ids": ids,
        "labels": section.labels,
        "parents": ["" if parent is None else ids[parent] for parent in section.parents],
        "values": section.values,
        "branchvalues": "total",
        "tiling": {"orientation": "v"},
        "texttemplate": "%{label}",
        "hovertemplate": f"%{{label}}<br>%{{value:,.3f}} {section.unit}<br>%{{percentRoot:.1%}} of all<extra></extra>",
        "maxdepth": -1,
    }
    orders = [("largest first", True), ("in the program's order", False)]
    menu = {
        "type": "buttons",
        "direction": "right",
        "buttons": [{"label": label, "method": "restyle", "args": ["sort", sort]} for label, sort in orders],
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
    }
    margin = {"t": 50, "b": 10, "l": 10, "r": 10}
    return {"data": [trace], "layout": {"height": 420, "margin": margin, "updatemenus": [menu]}}


def _timeline(section: Timeline) -> Chart:
    traces = []
    for category in dict.fromkeys(section.categories):
        chosen = [position for position, own in enumerate(section.categories) if own == category]
        trace: dict[str, Any] = {
            "type": "bar",
            "orientation": "h",
            "name": category,
            "y": [section.tracks[section.track[position]] for position in chosen],
            "base": [section.start_ms[position] for position in chosen],
            "x": [section.duration_ms[position] for position in chosen],
            "hovertext": [f"{section.names[position]}<br>{section.details[position]}" for position in chosen],
            "hovertemplate": "%{hovertext}<br>%{x:,.3f} ms<extra></extra>",
            "marker": {"line": {"width": 0}},
            "opacity": 0.8,
        }
        traces.append(trace)
    layout = {
        "barmode": "overlay",
        "height": 150 + TRACK_HEIGHT * len(section.tracks),
        "xaxis": {"title": {"text": "ms"}},
        "yaxis": {"type": "category", "automargin": True, "fixedrange": True},
        "legend": {"orientation": "h", "y": 1.1},
        "showlegend": True,
        "margin": {"t": 30, "r": 10},
    }
    return {"data": traces, "layout": layout}


def _curve(section: Curve) -> Chart:
    trace = {
        "type": "scatter",
        "mode": "lines",
        "x": section.seconds,
        "y": section.values,
        "line": {"shape": "hv"},
        "fill": "tozeroy",
        "hovertemplate": f"%{{y:,.3f}} {section.unit} at %{{x:.4f}} s<extra></extra>",
    }
    layout = {
        "height": 320,
        "xaxis": {"title": {"text": "seconds"}},
        "yaxis": {"title": {"text": section.unit}, "rangemode": "tozero"},
        "margin": {"t": 30, "r": 10},
    }
    return {"data": [trace], "layout": layout}


_CHARTS: Mapping[type[Section], Callable[[Any], Chart]] = {Icicle: _icicle, Timeline: _timeline, Curve: _curve}
