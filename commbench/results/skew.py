"""Which ranks of the launch are persistently late, from the skews on the common clock."""

from __future__ import annotations

from collections.abc import Sequence

from commbench.results.record import Record
from commbench.results.stats import median
from commbench.results.status import OK
from commbench.units import expand_ranges

LATE_US = 5.0  # an arrival that much after the first rank's is late, if it is beyond the clocks' error too
ERRORS = 3.0
FEWEST_CELLS = 3


def laggards(records: Sequence[Record]) -> list[str]:
    """Return a line for each rank that came late in most cells of its group: by how much, and how sure that is."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.status == OK and record.arrival_skew_us:
            groups.setdefault(record.group, []).append(record)
    return [line for name, mine in groups.items() for line in _of_group(name, mine)]


def _of_group(name: str, records: Sequence[Record]) -> list[str]:
    lines, where = [], "" if name == "all" else f" (group {name})"
    for place, rank in enumerate(expand_ranges(records[0].ranks)):
        late = [
            skew
            for record in records
            if (skew := (record.arrival_skew_us or [])[place]) > max(LATE_US, ERRORS * (record.skew_error_us or 0.0))
        ]
        if len(records) >= FEWEST_CELLS and 2 * len(late) > len(records):
            error = max(record.skew_error_us or 0.0 for record in records)
            lines.append(
                f"rank {rank}{where} is late: it arrives {median(late):.0f} us after the first "
                f"(± {error:.1f} us) in {len(late)} of {len(records)} cells"
            )
    if 2 * len(lines) > (records[0].nranks or 0):  # each waits for the others in turn: that is no rank's fault
        return [
            f"{len(lines)} of {records[0].nranks} ranks{where} arrive late in most cells, so none is named: "
            "they share cores, or the window is too short"
        ]
    return lines
