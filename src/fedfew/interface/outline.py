"""Reads names and help lines from a module's source, without importing torch."""

import ast
from functools import cache
from importlib import resources

ROOT = resources.files("fedfew")


def summary(target: str) -> str:
    """The first line of the docstring of ``package.module:name``, or of its module's."""
    module, _, name = target.partition(":")
    nodes: list[ast.FunctionDef | ast.ClassDef | ast.Module] = [*_definitions(module, name), _tree(module)]
    return next(((ast.get_docstring(node) or "").partition("\n")[0] for node in nodes), "")


def registry(target: str) -> dict[str, str]:
    """The names in a registry (a dict literal in its module) and the ``package.module:name`` of each."""
    module, _, variable = target.partition(":")
    homes: dict[str, str] = {}
    for node in _tree(module).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {alias.asname or alias.name: f"{node.module}:{alias.name}" for alias in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == variable:
            assert isinstance(node.value, ast.Dict)
            pairs = zip(node.value.keys, node.value.values, strict=True)
            names = {k.value: v.id for k, v in pairs if isinstance(k, ast.Constant) and isinstance(v, ast.Name)}
            return {str(name): homes.get(made, f"{module}:{made}") for name, made in names.items()}
    raise LookupError(target)


def _definitions(module: str, name: str) -> list[ast.FunctionDef | ast.ClassDef]:
    nodes = _tree(module).body
    return [node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]


@cache
def _tree(module: str) -> ast.Module:
    place = ROOT.joinpath(*module.split(".")[1:])
    source = place / "__init__.py" if place.is_dir() else ROOT.joinpath(*module.split(".")[1:-1], f"{place.name}.py")
    return ast.parse(source.read_text("utf-8"))
