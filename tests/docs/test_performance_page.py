"""The page on performance: aims are compared in the right direction, and what did not run is named."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

import report
from table import Aim, Contender, Row


def result(ours, theirs=None, problem=None):
    entries = [{"name": "Penstock", "is_bound": False, "turns": 1, "versions": "penstock 1"}]
    entries.append({"name": "peer", "is_bound": False, "turns": 1, "versions": "peer 2"})
    for entry, value in zip(entries, (ours, theirs), strict=True):
        if value is not None:
            entry["figures"] = {"wall_s": {"median": value, "least": value, "most": value}}
    if problem:
        entries[1] = {"name": "peer", "is_bound": False, "problem": problem}
    return {"key": "row", "contenders": entries}


def verdict(aim, found):
    row = Row("row", "a row", "wall_s", (Contender("Penstock", ("x", "y")),), (aim,))
    return report.verdicts(row, found)[0][1:]


def test_an_aim_compares_a_figure_or_a_ratio_with_its_limit():
    assert verdict(Aim("wall_s", 2.0), result(1.5)) == ("1.50", "met")
    assert verdict(Aim("wall_s", 1.0), result(1.5)) == ("1.50", "**not met**")
    assert verdict(Aim("wall_s", 1.0, is_floor=True), result(1.5)) == ("1.50", "met")
    assert verdict(Aim("wall_s", 1.0, "peer"), result(3.0, 2.0)) == ("1.50 x", "**not met**")
    assert verdict(Aim("wall_s", 4.0, "peer", is_floor=True, inverse=True), result(1.0, 5.0)) == (
        "5.00 x",
        "met",
    )


def test_an_aim_is_not_measured_where_a_contender_did_not_run():
    aim = Aim("wall_s", 4.0, "peer")
    assert verdict(aim, result(1.0, problem="set JARS to let it take part")) == ("-", "not measured")
    assert verdict(aim, None) == ("-", "not measured")


FACTS = {
    **dict.fromkeys(("date", "processor", "system", "python", "java"), "x"),
    **dict.fromkeys(("cores", "memory_gb", "load_before", "load_after", "minutes"), 1),
}


def test_the_page_names_why_a_contender_did_not_run():
    found = result(1.0, problem="set JARS to let it take part")
    page = report.page({"measured": FACTS, "rows": [{**found, "key": report.ROWS[0].key}]})
    assert "| peer | set JARS to let it take part |" in page


def test_rows_that_are_measured_anew_stand_beside_the_others_with_their_own_date():
    first, second = (row.key for row in report.ROWS[:2])
    known = {"measured": FACTS, "rows": [{**result(1.0, 2.0), "key": key} for key in (first, second)]}
    anew = {"measured": {**FACTS, "date": "later"}, "rows": [{**result(3.0, 2.0), "key": second}]}
    both = report.updated(known, anew)
    assert both["measured"] == FACTS
    assert [row["key"] for row in both["rows"]] == [first, second]
    assert [row["contenders"][0]["figures"]["wall_s"]["median"] for row in both["rows"]] == [1.0, 3.0]
    assert (
        report.page(both).count("Measured apart from the others, on later, x: load 1 before and 1 after.")
        == 1
    )
