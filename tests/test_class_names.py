"""A class name has one meaning within a file: no two modules that meet define classes of the same name."""

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import grimp
import pytest

import penstock

ROOT = Path(penstock.__file__).parent


def find_double_names(classes, imports):
    """Return the classes of one name whose modules import each other, or are imported together by a third one.

    Args:
        classes: By module, the names of its classes.
        imports: By module, the modules that it imports.

    Returns:
        Sorted triples of the name and the two modules.
    """
    homes = defaultdict(set)
    for module, names in classes.items():
        for name in names:
            homes[name].add(module)
    return sorted(
        (name, one, other)
        for name, modules in homes.items()
        for one, other in combinations(sorted(modules), 2)
        if other in imports[one]
        or one in imports[other]
        or any({one, other} <= imported for imported in imports.values())
    )


def class_names(path):
    """Return the names of the classes that a file defines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("penstock", cache_dir=None)


def test_two_modules_that_meet_have_no_class_of_the_same_name(graph):
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    classes = {}
    for module in graph.modules:
        place = ROOT.joinpath(*module.split(".")[1:])
        classes[module] = class_names(
            place / "__init__.py" if place.is_dir() else place.with_name(f"{place.name}.py")
        )
    assert sum(map(len, classes.values())) > 500
    assert find_double_names(classes, imports) == []


def test_a_name_is_found_in_a_module_and_in_one_that_it_imports():
    imports = {"a": {"b"}, "b": set()}
    assert find_double_names({"a": {"Kept", "One"}, "b": {"Kept"}}, imports) == [("Kept", "a", "b")]


def test_a_name_is_found_in_two_modules_that_a_third_one_imports():
    imports = {"a": set(), "b": set(), "c": {"a", "b"}}
    assert find_double_names({"a": {"Kept"}, "b": {"Kept"}, "c": set()}, imports) == [("Kept", "a", "b")]


def test_modules_that_never_meet_may_share_a_name():
    imports = {"a": set(), "b": set(), "c": {"a"}, "d": {"b"}}
    assert find_double_names({"a": {"Kept"}, "b": {"Kept"}, "c": set(), "d": set()}, imports) == []
