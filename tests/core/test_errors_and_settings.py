"""Errors name code, place, value and remedy; settings are read off the annotations."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest

import fedfew
from fedfew.core.errors import CODES, ConfigErrors, FedfewError
from fedfew.core.settings import Doc, Fraction, NonNegative, Setting, settings_of


def test_an_error_says_code_place_what_and_remedy() -> None:
    assert str(FedfewError("E106", "method.alpha", "α=2", "Lower it")) == "E106 method.alpha: α=2. Lower it"
    assert str(FedfewError("E106", "method.alpha", "α=2")).endswith(CODES["E106"].remedy)
    assert str(FedfewError("E106", "method.alpha", "α=2", "")) == "E106 method.alpha: α=2"


def test_several_faults_are_told_at_once_under_the_first_code() -> None:
    both = ConfigErrors([FedfewError("E104", "c.toml", "one", ""), FedfewError("E103", "c.toml", "two", "")])
    assert both.code == "E104" and str(both) == "E104 c.toml: one\nE103 c.toml: two"


@pytest.mark.parametrize("code", CODES)
def test_every_code_is_explained_and_in_a_known_family(code: str) -> None:
    explanation = CODES[code]
    assert code[0] == "E" and code[1] in "12345" and len(code) == 4
    assert explanation.title and explanation.cause.endswith(".") and explanation.remedy.endswith(".")


def test_every_code_is_raised_somewhere_and_every_raised_code_is_explained() -> None:
    source = "".join(path.read_text("utf-8") for path in Path(fedfew.__file__).parent.rglob("*.py"))
    assert set(re.findall(r"\bE[1-5]\d\d\b", source)) == set(CODES)


def test_settings_are_the_annotated_parameters_of_functions_and_dataclasses() -> None:
    def rule(vectors: list[float], *, cap: Annotated[NonNegative, Doc("the cap")] = 2.0, plain: int = 1) -> None: ...

    @dataclass(frozen=True)
    class Method:
        part: int
        share: Annotated[Fraction, Doc("the share")] = 0.5

    found = settings_of(rule)
    assert list(found) == ["cap"]
    assert isinstance(found["cap"], Setting) and (found["cap"].default, found["cap"].doc) == (2.0, "the cap")
    assert {name: (s.default, s.doc) for name, s in settings_of(Method).items()} == {"share": (0.5, "the share")}
