"""Write the names of ImageNet's 1,000 classes and of all that they are kinds of, by WordNet's noun hierarchy.

    python -m tools.imagenet_names /usr/share/wordnet/data.noun SYNSETS > src/fedfew/models/backbones/imagenet.txt

``data.noun`` is a file of WordNet 3.0 (Debian: wordnet-base); SYNSETS lists the classes' synsets in the order of the
classifier's outputs, such as n01440764.
"""

import sys
from itertools import groupby
from pathlib import Path

NOTICE = """\
# Classes of ImageNet (ILSVRC 2012) by name: a noun with its synonyms, and the classes that are kinds of it.
# Made from WordNet 3.0 by tools/imagenet_names.py, under WordNet's licence:
#
"""


def synsets(file: Path) -> dict[str, tuple[list[str], list[str]]]:
    """The words of each synset, and the synsets that it is a kind of."""
    out = {}
    for line in file.read_text().splitlines():
        if line.startswith("  "):
            continue
        fields = line.partition("|")[0].split()
        words = 4 + 2 * int(fields[3], 16)
        pointers = [fields[p : p + 4] for p in range(words + 1, words + 1 + 4 * int(fields[words]), 4)]
        kinds = [target for sign, target, part, _ in pointers if sign in ("@", "@i") and part == "n"]
        out[fields[0]] = [word.replace("_", " ") for word in fields[4:words:2]], kinds
    return out


def licence(file: Path) -> str:
    """WordNet's notice, which opens each of its files with numbered lines."""
    head = [line for line in file.read_text().splitlines() if line.startswith("  ")]
    return "".join(f"# {line.strip().partition(' ')[2]}".rstrip() + "\n" for line in head)


def ranges(numbers: list[int]) -> str:
    """Numbers such as 3, 4, 5, 9 as 3-5 9."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0])]
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def main() -> None:
    nouns, order = Path(sys.argv[1]), Path(sys.argv[2]).read_text().split()
    known = synsets(nouns)
    members: dict[str, list[int]] = {}
    for number, synset in enumerate(order):
        above, todo = set(), [synset.removeprefix("n")]
        while todo:
            if (one := todo.pop()) not in above:
                above.add(one)
                todo += known[one][1]
        for one in above:
            members.setdefault(one, []).append(number)
    sys.stdout.write(NOTICE + licence(nouns))
    for one in sorted(members, key=lambda one: (members[one], one)):
        if len(members[one]) < len(order) / 2:  # an entity or an object says nothing
            print(f"{', '.join(known[one][0])}: {ranges(members[one])}")


if __name__ == "__main__":
    main()
