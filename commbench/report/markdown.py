"""A report in Markdown: the words and the tables, without pictures."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.errors import printable
from commbench.report import compare_screen as screen
from commbench.report.best import Best
from commbench.report.content import Content
from commbench.report.summary import Statement
from commbench.report.tables import best_table, finding_table, kernel_table, row_table, setting_table, side_table

ROWS = 500  # of records: the CSV has all


def render(content: Content, statements: Sequence[Statement], best: Sequence[Best], command: str) -> str:
    """Return the text."""
    lines = ["# commbench report", "", f"made by {screen.escaped(printable(command))}", "", "## Summary", ""]
    for one in statements:
        lines.append(f"- **{one.kind}**: {screen.escaped(one.text)}")
    lines += ["", "## Sides", "", *screen.markdown_table(side_table(content).texts)]
    for found in content.comparisons:
        a, b = content.letter(found.a), content.letter(found.b)
        shared, cells = screen.cell_table(found, a, b, content.margin)
        lines += ["", f"## {b} against {a}", "", *screen.markdown_table(screen.band_table(found, a, b)), ""]
        lines += [f"Cells: {screen.escaped(shared)}", "", *screen.markdown_table(cells)]
        lines += ["", *(f"- unmatched: {screen.escaped(line)}" for line in screen.unmatched_lines(found, a, b))]
    if len(content.kernels):
        lines += ["", "## Kernels", "", *screen.markdown_table(kernel_table(content).texts)]
    if best:
        lines += ["", "## Best algorithms", "", *screen.markdown_table(best_table(best).texts)]
    lines += [
        "",
        "## Findings",
        "",
        *(screen.markdown_table(finding_table(content).texts) if content.findings else ["None."]),
    ]
    lines += ["", "## Settings", "", *screen.markdown_table(setting_table(content).texts)]
    rows = row_table(content, ROWS)
    more = f" (the first {ROWS} of {len(content.frame)})" if len(content.frame) > ROWS else ""
    lines += ["", f"## Rows{more}", "", *screen.markdown_table(rows.texts)]
    return "\n".join(lines) + "\n"
