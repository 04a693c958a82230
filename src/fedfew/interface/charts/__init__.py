"""Charts: what a figure shows is said once, and drawn as SVG, written as CSV or handed to the browser's script."""

from fedfew.interface.charts.figure import COLOURS, Bars, Figure, Grid, Level, Lines, Mark, Point, Series

__all__ = ["COLOURS", "Bars", "Figure", "Grid", "Level", "Lines", "Mark", "Point", "Series"]
