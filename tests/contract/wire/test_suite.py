"""The suite itself: its lists name tests that exist, and Penstock's own list is empty."""

import ast
import importlib.util
from pathlib import Path

HERE = Path(__file__).parent


def known():
    spec = importlib.util.spec_from_file_location("wire_deviations_again", HERE / "deviations.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [module.DEVIATIONS, module.NOT_ASKED]


def test_our_own_server_deviates_in_nothing():
    assert [lists["penstock"] for lists in known()] == [{}, {}]


def test_every_deviation_names_a_test_and_says_why():
    tests = {
        node.name
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }
    for lists in known():
        for entries in lists.values():
            assert {name.partition("[")[0] for name in entries} <= tests
            assert all(len(reason) > 8 for reason in entries.values())


def test_no_two_tests_share_a_name():
    names = [
        node.name
        for path in HERE.glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]
    assert len(names) == len(set(names))
