"""The doctor's findings on the console: PASSED or FAILED with the remedy, and the same as JSON."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from fedfew.interface.console import out, print_json

if TYPE_CHECKING:
    from fedfew.deploy.doctor import Finding


def show(findings: "Iterable[Finding]", json: bool) -> None:
    """Print each finding as it comes; exit status 2 if one failed."""
    seen = []
    for finding in findings:
        seen.append(finding)
        if not json:
            mark = "[green]PASSED[/]" if finding.passed else "[bold red]FAILED[/]"
            out.print(f"{mark} {finding.name}: ", end="")
            out.print(finding.detail, markup=False, soft_wrap=True)
            if not finding.passed:
                out.print(f"       {finding.remedy}", markup=False, soft_wrap=True)
    good = all(finding.passed for finding in seen)
    if json:
        print_json({"ok": good, "checks": [asdict(finding) for finding in seen]})
    if not good:
        raise SystemExit(2)
