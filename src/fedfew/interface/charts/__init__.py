"""Charts: a figure is described once, then drawn as SVG, written as CSV or passed to the browser's script."""

from fedfew.interface.charts.figure import COLOURS, Bars, Figure, Grid, Level, Lines, Mark, Point, Series, Unit

__all__ = ["COLOURS", "Bars", "Figure", "Grid", "Level", "Lines", "Mark", "Point", "Series", "Unit"]
