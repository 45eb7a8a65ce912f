"""Write the measurements as Markdown: docs/performance.md, and README's section on performance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rows import NOT_MEASURED, ROWS
from table import UNITS, Aim, Row

BEGIN, END = "<!-- measured: make bench -->", "<!-- /measured -->"
README_ROWS = (
    "backlog-100mb",
    "backlog-aggregated",
    "latency-20",
    "idle-100",
    "decode-1k",
    "consumer-8",
    "producer",
    "sink",
    "server",
)


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def _figure(name: str, value: float) -> str:
    return UNITS[name][1](value)


def medians(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the median of each figure of each contender; one that did not run has none."""
    return {
        each["name"]: {name: figure["median"] for name, figure in each.get("figures", {}).items()}
        for each in result["contenders"]
    }


def describe_aim(aim: Aim) -> str:
    """Return an aim in words."""
    unit = UNITS[aim.figure][0]
    if aim.contender is not None:
        unit = f"{unit}, {aim.contender}"
    if aim.against is None:
        return f"{'≥' if aim.is_floor else '≤'} {_number(aim.limit)} {unit}"
    if aim.inverse:
        return f"{_number(aim.limit)} times less than {aim.against} ({unit})"
    return f"{'≥' if aim.is_floor else '≤'} {_number(aim.limit)} x {aim.against} ({unit})"


def verdicts(row: Row, result: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """Return each aim of a row with its measurement and whether it is met."""
    found = []
    for aim in row.aims:
        value = aim.value(medians(result)) if result is not None else None
        if value is None:
            found.append((describe_aim(aim), "-", "not measured"))
        else:
            ratio = "" if aim.against is None else " x"
            found.append(
                (describe_aim(aim), _number(value) + ratio, "met" if aim.is_met(value) else "**not met**")
            )
    return found


def _spread(figure: dict[str, float], name: str) -> str:
    if figure["least"] == figure["most"]:
        return _figure(name, figure["median"])
    return f"{_figure(name, figure['median'])} ({_figure(name, figure['least'])}-{_figure(name, figure['most'])})"


def _contenders(result: dict[str, Any]) -> list[str]:
    """Return the table of a row's contenders, one column for each figure."""
    names = list(dict.fromkeys(name for each in result["contenders"] for name in each.get("figures", {})))
    names = [name for name in names if name in UNITS]
    lines = [f"| | {' | '.join(UNITS[name][0] for name in names)} |", f"|{'---|' * (len(names) + 1)}"]
    for each in result["contenders"]:
        title = f"*{each['name']}*" if each["is_bound"] else each["name"]
        if "problem" in each:
            lines.append(f"| {title} | {each['problem']} |{' |' * (len(names) - 1)}")
            continue
        cells = [_spread(each["figures"][name], name) if name in each["figures"] else "" for name in names]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    told = sorted(
        {part for each in result["contenders"] for part in each.get("versions", "").split(", ") if part}
    )
    turns = min((each["turns"] for each in result["contenders"] if "turns" in each), default=0)
    return [*lines, "", f"{turns} turn{'' if turns == 1 else 's'}; {', '.join(told)}."]


def measured_on(results: dict[str, Any]) -> str:
    """Return the machine and the day in a sentence."""
    facts = results["measured"]
    return (
        f"Measured on {facts['date']} with {facts['cores']} cores ({facts['processor']}), {facts['memory_gb']} GB, "
        f"{facts['system']}, Python {facts['python']}, {facts['java']}; load {facts['load_before']} before and "
        f"{facts['load_after']} after {facts['minutes']} minutes."
    )


def _distance(result: dict[str, Any], figure: str) -> str:
    """Return how far Penstock is from the row's bound."""
    found = medians(result)
    ours = found[result["contenders"][0]["name"]].get(figure)
    lines = [
        f"{_number(ours / found[each['name']][figure])} x *{each['name']}*"
        for each in result["contenders"]
        if each["is_bound"] and ours and found[each["name"]].get(figure)
    ]
    return f"Distance from the bound ({UNITS[figure][0]}): {', '.join(lines)}." if lines else ""


def page(results: dict[str, Any]) -> str:
    """Return docs/performance.md."""
    by_key = {result["key"]: result for result in results["rows"]}
    lines = [
        "# Performance",
        "",
        "This page is written by `make bench`, from `docs/performance.json`. Each row runs its contenders in turn, each time in a fresh",
        "process, against one embedded server in a process of its own. The figures are medians, with the least and the most in",
        "brackets. Wall and CPU seconds are those of the whole tree of processes, JVM and Python workers included, in the measured part:",
        "Spark's session is started and warm before. The peak of memory is that of the tree in its whole life. Contenders in *italics*",
        "are bounds: they do less than the row asks for.",
        "",
        "Rows of queries and writes are measured twice in each session of Spark. The first time the JVM loads and compiles what streams",
        "or sinks need, and Spark looks its sources in Python up and starts their daemons; *again in the session* is the second time,",
        "with another application and checkpoint, and all data read or written again.",
        "",
        measured_on(results),
        "",
        "The server uses a part of the same cores, so wall times are longer than with a remote service; CPU seconds and ratios are",
        "more reliable. It answers within a millisecond, which no service does. Machines differ from day to day, by a factor of two.",
        "The texts' figures of single steps were profiled on slower ones: their shares are more reliable than their seconds.",
        "",
        "![All rows](performance.png)",
        "",
        "## Aims",
        "",
        "| row | aim | measured | |",
        "|---|---|---|---|",
    ]
    for row in ROWS:
        lines += [
            f"| {row.title} | {aim} | {value} | {verdict} |"
            for aim, value, verdict in verdicts(row, by_key.get(row.key))
        ]
    lines += ["", "## Rows"]
    shown: dict[str, str] = {}
    for row in ROWS:
        lines += ["", f"### {row.title[0].upper()}{row.title[1:]}", ""]
        result = by_key.get(row.key)
        if result is None:
            lines += [f"Not measured in this run: `python bench/run.py {row.key}`.", ""]
        else:
            lines += [*_contenders(result), ""]
            if distance := _distance(result, row.figure):
                lines += [distance, ""]
            if apart := result.get("apart"):
                lines += [
                    (
                        f"Measured apart from the others, on {apart['date']}, {apart['processor']}: load {apart['load_before']} before "
                        f"and {apart['load_after']} after."
                    ),
                    "",
                ]
        lines.append(row.text if row.text not in shown else f"For its bounds see *{shown[row.text]}*, above.")
        shown.setdefault(row.text, row.title)
    lines += ["", "## Not in the table", "", "| measurement | reason |", "|---|---|"]
    lines += [f"| {what} | {why} |" for what, why in NOT_MEASURED.items()]
    return "\n".join(lines) + "\n"


def updated(known: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    """Return earlier results with the newly measured rows in place of theirs, each with its machine and date."""
    facts = results["measured"]
    apart = {name: facts[name] for name in ("date", "processor", "load_before", "load_after")}
    found = {result["key"]: {**result, "apart": apart} for result in results["rows"]}
    rows = {**{result["key"]: result for result in known["rows"]}, **found}
    return {"measured": known["measured"], "rows": [rows[row.key] for row in ROWS if row.key in rows]}


def _twice(row: Row, figures: dict[str, float]) -> str:
    """Return a row's figure, with that of the second time in a session behind it."""
    again = f"again_{row.figure}"
    then = f", then {_figure(again, figures[again])}" if again in figures else ""
    return f"{_figure(row.figure, figures[row.figure])}{then}"


def readme_section(results: dict[str, Any]) -> str:
    """Return the part of the README between the marks."""
    by_key = {result["key"]: result for result in results["rows"]}
    rows = {row.key: row for row in ROWS}
    lines = [BEGIN, "", "| | Penstock | beside |", "|---|---|---|"]
    for key in README_ROWS:
        result = by_key.get(key)
        if result is None:
            continue
        row, found = rows[key], medians(result)
        unit = UNITS[row.figure][0]
        ours, *peers = [
            each
            for each in result["contenders"]
            if row.figure in found[each["name"]] and not each["is_bound"]
        ]
        beside = ", ".join(f"{each['name']}: {_twice(row, found[each['name']])}" for each in peers)
        lines.append(f"| {row.title} ({unit}) | {_twice(row, found[ours['name']])} | {beside} |")
    aims = [verdict for row in ROWS for _, _, verdict in verdicts(row, by_key.get(row.key))]
    lines += [
        "",
        (
            "Of two figures the second is for the next query or write in the same session of Spark. "
            f"{measured_on(results)} {aims.count('met')} of {len(aims) - aims.count('not measured')} aims are met; all rows, "
            "their aims and bounds are in [docs/performance.md](docs/performance.md)."
        ),
        "",
        END,
    ]
    return "\n".join(lines)


def documents(root: Path) -> dict[Path, str]:
    """Return the pages that are generated from docs/performance.json, with their text."""
    results = json.loads((root / "docs" / "performance.json").read_text())
    readme = (root / "README.md").read_text()
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return {
        root / "docs" / "performance.md": page(results),
        root / "README.md": f"{before}{readme_section(results)}{after}",
    }


def summary(results: dict[str, Any]) -> str:
    """Return the aims of the measured rows, one a line."""
    by_key = {result["key"]: result for result in results["rows"]}
    return "\n".join(
        f"{row.key:<20} {aim:<60} {value:>12}  {verdict.strip('*')}"
        for row in ROWS
        if row.key in by_key
        for aim, value, verdict in verdicts(row, by_key[row.key])
    )
