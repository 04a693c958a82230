"""fedfew ls, track, archive, report and watch: list runs, send, keep and show their records. `ls` needs no torch."""

import webbrowser
from pathlib import Path
from typing import Any

from fedfew.core.errors import FedfewError
from fedfew.core.text import percent
from fedfew.interface.console import Answer, err, print_json, print_table, say
from fedfew.interface.sinks import SINKS
from fedfew.runs.collection import SUFFIX, is_archive, open_runs, runs_below, unpack, write_archive


def ls(folder: Path) -> Answer:
    rows: list[dict[str, Any]] = []
    for run in runs_below(folder):
        try:
            row: dict[str, Any] = {
                "state": run.state,
                "method": run.method,
                "aggregator": run.aggregator,
                "dataset": run.dataset,
                "seed": run.seed,
                "rounds": run.done,
                "of": run.planned,
                "accuracy": run.accuracy(),
            }
        except FedfewError as fault:  # a damaged run does not hide the others
            row = {"state": f"unreadable ({fault.code})"}
        rows.append({"run": str(run.path)} | row)
    return {"runs": rows}, lambda: _list(rows) if rows else say(f"no runs below {folder}")


def _list(rows: list[dict[str, Any]]) -> None:
    shown = []
    for row in rows:
        rounds = f"{row['rounds']}/{row['of']}" if "of" in row else ""
        numbers = (str(row.get("seed", "")), rounds, percent(row.get("accuracy")))
        shown.append([row["run"], row.get("method", ""), row.get("dataset", ""), row["state"], *numbers])
    print_table(("run", "method", "dataset", "state", "seed", "rounds", "accuracy"), shown, words=4)


def track(runs: tuple[Path, ...], to: str, out: str) -> Answer:
    if to not in SINKS:
        raise FedfewError("E105", "--to", f"{to!r} is unknown", f"Known: {', '.join(SINKS)}")
    send, show = SINKS[to]
    written = {str(run.path): send(run, out) for run in open_runs(runs)}
    lines = [f"{name}: {rounds} new rounds" for name, rounds in written.items()]
    return {"to": to, "out": out, "rounds": written}, lambda: say("\n".join([*lines, f"next: {show.format(out)}"]))


def archive(source: Path, to: Path) -> Answer:
    """Put the records of finished runs into one file, without models and checkpoints; or unpack it again.

    An archive that exists keeps its other runs. compare, report, ls and fedfew.compare read it as they read folders.
    """
    if is_archive(source):
        folders = unpack(source, to)
        done, left = len(folders), list[str]()
    else:
        runs = open_runs([source])
        if not is_archive(to):
            raise FedfewError("E103", "--to", f"{to} is not an archive", f"Give a name that ends in {SUFFIX}")
        finished = {run.name: run for run in runs if run.finished}
        if finished:
            write_archive(to, finished)
        done, left = len(finished), [str(run.path) for run in runs if not run.finished]
    lines = [f"{to}: the records of {done} run{'' if done == 1 else 's'}"]
    lines += [f"left out, not finished: {name}" for name in left]
    return {"to": str(to), "copied": done, "not_finished": left}, lambda: say("\n".join(lines))


def report(path: Path, out: Path | None) -> Answer:
    from fedfew.interface.report import write_report  # noqa: PLC0415 - with charts and templates

    written = write_report(path, out)
    return {"report": str(written), "bytes": written.stat().st_size}, lambda: say(f"report: {written}")


def watch(runs: Path, host: str, port: int | None, open_: bool, json: bool) -> None:
    from fedfew.interface.page.app import serve  # noqa: PLC0415 - a web server

    if not runs.is_dir():
        raise FedfewError("E302", str(runs), "is not a folder" if runs.exists() else "does not exist")

    def announce(address: str) -> None:
        if json:
            print_json({"url": address})
        else:
            err.print(f"watching {runs}: [link]{address}[/link]  (Ctrl-C ends)", soft_wrap=True)
        if open_:
            webbrowser.open(address)

    serve(runs, host, port, announce)
