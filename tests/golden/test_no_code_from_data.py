"""Nothing in the package runs code that comes out of a file (RELIABILITY F4)."""

import ast
from pathlib import Path

import fedfew

SOURCE = Path(fedfew.__file__).parent
FORBIDDEN_MODULES = {"pickle", "_pickle", "pickletools", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "torch.load"}


def called(node: ast.Call) -> str:
    return ast.unparse(node.func)


def faults(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").split(".")[0]]
        found += [f"imports {name}" for name in names if name in FORBIDDEN_MODULES]
        if isinstance(node, ast.Call):
            weights_only = any(k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords)
            if called(node) in FORBIDDEN_CALLS and not (called(node) == "torch.load" and weights_only):
                found.append(f"calls {called(node)}")
            if any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords):
                found.append("allows pickles in NumPy files")
            if any(k.arg == "shell" and ast.unparse(k.value) != "False" for k in node.keywords):
                found.append("starts a shell")
    return [f"{path.relative_to(SOURCE) if path.is_relative_to(SOURCE) else path}: {what}" for what in found]


def test_no_code_comes_out_of_a_file() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    assert [fault for path in files for fault in faults(path)] == []


SAMPLE = """
import pickle
from yaml import load
eval("1")
torch.load(x)
np.load(x, allow_pickle=True)
run(a, shell=True)
"""


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(SAMPLE)
    assert len(faults(tmp_path / "bad.py")) == 6
