"""Checks a folder of images for everything that would spoil a run, before it starts."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from fedfew.core.errors import FedfewError
from fedfew.data.dataset import shown
from fedfew.data.images.folders import LAYOUT, Contents


@dataclass(frozen=True, eq=False)
class Finding:
    """A fault; a serious one stops a run, any other is a warning."""

    fault: FedfewError
    serious: bool


@dataclass(frozen=True)
class Copy:
    """A file with the same pixels as an earlier file."""

    path: str
    of: str
    across: bool
    """True if one is in server/ and the other in test/."""
    in_two_classes: bool
    """True if the two are in different classes."""

    @property
    def kind(self) -> str:
        """Why it matters, in a few words."""
        return "in server and test" if self.across else "in two classes" if self.in_two_classes else "copy"


def findings(contents: Contents, batch: int, *, allow_overlap: bool, sites: bool = True) -> list[Finding]:
    """All faults of a folder, the serious ones first; ``sites`` is False where the clients may be elsewhere."""
    copies = find_copies(contents)
    everything = [
        *_layout(contents),
        *(_without_sites(contents) if sites else ()),
        *_class_names(contents),
        *_copies(contents, copies, allow_overlap),
        *_files(contents),
        *_sites(contents, batch),
    ]
    return sorted(everything, key=lambda finding: not finding.serious)


def find_copies(contents: Contents) -> list[Copy]:
    """Every file with the same pixels as an earlier one."""
    first: dict[bytes, int] = {}
    at_server: dict[bytes, int] = {}
    copies = []
    for i, key in enumerate(_keys(contents.images)):  # server/ comes before test/
        file = contents.files[i]
        across = at_server.get(key) if file.part == "test" else None
        original = first.get(key) if across is None else across
        if original is None:
            first[key] = i
        else:
            of = contents.files[original]
            in_two_classes = "clients" not in (file.part, of.part) and file.group != of.group
            copies.append(Copy(shown(file.path), shown(of.path), across is not None, in_two_classes))
        if file.part == "server":
            at_server.setdefault(key, i)
    return copies


def _keys(images: Tensor) -> Iterator[bytes]:
    for image in images.numpy():
        yield hashlib.blake2b(image.data, digest_size=16).digest()


def _layout(contents: Contents) -> Iterator[Finding]:
    survey, root = contents.survey, shown(contents.survey.root)
    classes = survey.groups["server"]
    if len(classes) < 2:
        message = f"server/ has {len(classes)} class folder{'' if len(classes) == 1 else 's'}, at least 2 are needed"
        yield Finding(FedfewError("E206", root, message, LAYOUT), True)
    counts = Counter(contents.files[i].group for i in contents.rows("server"))
    for name in classes:
        if not counts[name]:
            folder = shown(f"{root}/server/{name}")
            yield Finding(FedfewError("E206", folder, "has no readable image", "Add one, or remove the folder"), True)
    if not contents.rows("test"):
        message = "test/ has no readable image, so accuracy can only come from cross-validation (`fedfew try`)"
        yield Finding(FedfewError("E206", root, message, "Put labeled images into test/<class>/"), False)
    if survey.unused:
        message = f"these folders are not used: {', '.join(map(shown, survey.unused))}"
        yield Finding(FedfewError("E206", root, message, LAYOUT), False)


def _without_sites(contents: Contents) -> Iterator[Finding]:
    if not contents.rows("clients"):
        sites = contents.survey.groups["clients"]
        message = "no site has a readable image" if sites else "clients/ has no site folders"
        yield Finding(FedfewError("E206", shown(contents.survey.root), message, LAYOUT), True)


def _class_names(contents: Contents) -> Iterator[Finding]:
    root, groups = shown(contents.survey.root), contents.survey.groups
    alike = defaultdict(set)
    for name in (*groups["server"], *groups["test"]):
        alike[name.casefold()].add(name)
    for names in alike.values():
        if len(names) > 1:
            message = f"the classes {' and '.join(map(shown, sorted(names)))} differ only by case"
            yield Finding(FedfewError("E208", root, message, "Give them one name, or two different ones"), True)
    known = set(groups["server"])
    for name in groups["test"]:
        if name not in known and len(alike[name.casefold()]) == 1:
            message = f"the class {shown(name)} is in test/ but not in server/"
            yield Finding(
                FedfewError("E208", root, message, "Label some of its images at the server, or remove it"), True
            )
    tested = {contents.files[i].group for i in contents.rows("test")}
    missing = [name for name in groups["server"] if name not in tested]
    if tested and missing:
        message = f"test/ has no images of {', '.join(map(shown, missing))}"
        yield Finding(FedfewError("E208", root, message, "The accuracy will say nothing about these classes"), False)


def _copies(contents: Contents, copies: list[Copy], allow_overlap: bool) -> Iterator[Finding]:
    root = shown(contents.survey.root)
    across = [copy for copy in copies if copy.across]
    if across:
        message = f"{_images(len(across))} both in server/ and in test/, e.g. {across[0].of} and {across[0].path}"
        remedy = "Remove one of each, or set dataset.allow_overlap = true" if not allow_overlap else ""
        yield Finding(FedfewError("E207", root, message, remedy), not allow_overlap)
    doubtful = [copy for copy in copies if copy.in_two_classes]
    if doubtful:
        message = f"{_images(len(doubtful))} in two classes, e.g. {doubtful[0].of} and {doubtful[0].path}"
        yield Finding(FedfewError("E210", root, message, "Decide on one class"), False)
    other = [copy for copy in copies if not copy.across and not copy.in_two_classes]
    if other:
        message = f"{_images(len(other))} more than once, e.g. {other[0].of} and {other[0].path}"
        yield Finding(FedfewError("E210", root, message), False)


def _images(count: int) -> str:
    return "1 image is" if count == 1 else f"{count:,} images are"


def _files(contents: Contents) -> Iterator[Finding]:
    skipped = [problem for problem in contents.problems if problem.skipped]
    if skipped:
        message = f"{len(skipped):,} file{' is' if len(skipped) == 1 else 's are'} skipped, e.g. {skipped[0].path}"
        yield Finding(FedfewError("E209", shown(contents.survey.root), f"{message} {skipped[0].reason}"), False)


def _sites(contents: Contents, batch: int) -> Iterator[Finding]:
    sizes = Counter(contents.files[i].group for i in contents.rows("clients"))
    small = [name for name in contents.survey.groups["clients"] if sizes[name] < batch]
    if small:
        shown_sites = ", ".join(f"{shown(name)} ({sizes[name]})" for name in small[:5]) + (
            ", …" if len(small) > 5 else ""
        )
        message = f"{len(small)} of the sites have fewer images than a batch of {batch}: {shown_sites}"
        yield Finding(FedfewError("E211", shown(contents.survey.root), message), False)
