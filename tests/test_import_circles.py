"""No two files import each other, directly or by way of others; imports for type checking count too."""

import sys

import grimp
import pytest

PACKAGES = ("penstock", "penstock_demo", "penstock_local", "penstock_sim", "pyspark_penstock")


def find_circles(imports):
    """Return the sets of files that import each other in a circle.

    Args:
        imports: By file, the files that it imports.
    """
    circles, order, lowest, path = [], {}, {}, []

    def visit(file):
        order[file] = lowest[file] = len(order)
        path.append(file)
        for other in sorted(imports[file]):
            if other not in order:
                visit(other)
                lowest[file] = min(lowest[file], lowest[other])
            elif other in path:
                lowest[file] = min(lowest[file], order[other])
        if lowest[file] == order[file]:
            circle = set(path[path.index(file) :])
            del path[path.index(file) :]
            if len(circle) > 1:
                circles.append(circle)

    for file in sorted(imports):
        if file not in order:
            visit(file)
    return circles


@pytest.fixture(scope="module")
def imports():
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10 * len(graph.modules)))
    return {file: graph.find_modules_directly_imported_by(file) for file in graph.modules}


def test_no_two_files_import_each_other(imports):
    assert find_circles(imports) == []


def test_a_circle_of_three_files_is_found():
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert find_circles(imports) == [{"a", "b", "c"}]


def test_two_ways_to_one_file_are_no_circle():
    assert find_circles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
