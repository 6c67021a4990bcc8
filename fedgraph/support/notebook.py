"""Pictures and tables for notebooks."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PIXELS = 96
"""Pixels per inch in a notebook; pictures have twice as many, for high-resolution screens."""


def picture(width: float, height: float) -> Figure:
    """Return an empty Matplotlib figure for a notebook, independent of pyplot.

    Parameters
    ----------
    width, height : float
        In inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    # Figures of Matplotlib are shown only by pyplot.
    vars(figure)["_repr_html_"] = partial(figure_as_html, figure)
    return figure


def figure_as_html(figure: Figure) -> str:
    """Return a figure as an image in HTML."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=2 * _PIXELS)
    width, image = round(figure.get_figwidth() * _PIXELS), b64encode(content.getvalue()).decode()
    return f'<img width="{width}" style="max-width: 100%" src="data:image/png;base64,{image}">'


def table_as_html(title: str, text: str, heads: Sequence[str], rows: Sequence[Sequence[str]], more: str = "") -> str:
    """Return a title, a sentence, a table and a remark as escaped HTML."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    above = f"<p><b>{escape(title)}</b><br>{escape(text)}</p>" if title else ""
    return f"{above}<table><tr>{head}</tr>{body}</table><p>{escape(more)}</p>"
