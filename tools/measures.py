"""Measures of the code: size, imports, and patterns that should not come back.

python -m tools.measures [docs/understand/design.md]      print the table, or write it into the page
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = {
    "config values read by a string key": (r"\b(config|document|settings)\[\"", ()),
    "`ndim == 3` outside data": (r"\bndim [!=]= 3\b", ("data",)),
    "lines with `flips` outside data": (r"\bflips\b", ("data",)),
}
"""What to search for in src/fedfew, and the folders that are its place."""
BEFORE = {
    "lines of src": ("31,339", "≤ 23,000"),
    "lines of tests": ("27,512", "≤ 22,000"),
    "modules imported by `run quick`": ("169", "≤ 90"),
    "config values read by a string key": ("155", "0"),
    "`ndim == 3` outside data": ("13", "0"),
    "lines with `flips` outside data": ("75", "0"),
    "tracked files": ("1,832", "≤ 650"),
    "size of the work tree": ("33 MB", "≤ 10 MB"),
}
"""The same measures before the redesign, and its goals."""
BEGIN, END = "<!-- begin measures -->", "<!-- end measures -->"
IMPORTS = """
import sys
from fedfew.interface.cli import main
sys.argv = ["fedfew", "run", "quick", "--set", "rounds=1", "--out", sys.argv[1], "--json"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(sum(name.partition(".")[0] == "fedfew" for name in sys.modules))
"""


def measures() -> Iterator[tuple[str, int | str]]:
    """Each measure with its value now."""
    sources = {path: path.read_text("utf-8") for path in (ROOT / "src" / "fedfew").rglob("*.py")}
    yield "lines of src", sum(text.count("\n") for text in sources.values())
    yield "lines of tests", sum(path.read_text("utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py"))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", IMPORTS, f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    yield "modules imported by `run quick`", int(done.stdout.splitlines()[-1])
    for name, (pattern, own) in PATTERNS.items():
        folders = {path: path.relative_to(ROOT / "src" / "fedfew").parts[0] for path in sources}
        lines = [line for path, text in sources.items() if folders[path] not in own for line in text.splitlines()]
        yield name, sum(bool(re.search(pattern, line)) for line in lines)
    tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")[:-1]
    sizes = [(ROOT / name).stat().st_size for name in tracked if (ROOT / name).is_file()]
    yield "tracked files", len(sizes)
    yield "size of the work tree", f"{sum(sizes) / 1e6:.1f} MB"


def table() -> str:
    """All measures, before and now, with their goals."""
    rows = ["| | before the redesign | now | goal |", "|---|---|---|---|"]
    for name, value in measures():
        before, goal = BEFORE[name]
        rows.append(f"| {name} | {before} | {f'{value:,}' if isinstance(value, int) else value} | {goal} |")
    return "\n".join(rows)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        page = Path(sys.argv[1])
        head, _, rest = page.read_text("utf-8").partition(BEGIN)
        page.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", "utf-8")
    else:
        print(table())
