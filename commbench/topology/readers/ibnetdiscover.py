"""What ibnetdiscover prints of an InfiniBand fabric, with or without -p, drawn together to a tree (fabric.py).

    Switch  36 "S-<guid>"           # "name" base port 0 lid 0 lmc 0
    [1]     "H-<guid>"[1](<guid>)   # "n13 mlx5_0" lid N 4xNDR
    [20]    "S-<guid>"[4]           # "spine1" lid N 4xNDR

    CA  134  1 0x<guid> 4x EDR - SW  1719 10 0x<guid> ( 'n13 mlx5_0' - 'leaf1' )

Every cable is listed from both of its ends. Hosts are known by the descriptions of their adapters, which are `host
device` where the driver has set them, and something else where it has not.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from commbench.results.findings import DOUBT, NOTE, Finding, finding
from commbench.topology.cluster import Cable
from commbench.topology.fabric import Adapter, FoundSwitch, draw
from commbench.topology.reading import Reading, TopologyError

TITLE = "ibnetdiscover"

# Gb/s of one lane, per direction, as the rates are named: SDR to QDR with their coding (10 bits carry 8, so that 4xQDR
# carries 32 of its 40), FDR and later without. InfiniBand Trade Association, "InfiniBand Roadmap".
LANE = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10, "FDR": 14, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}

LONGEST_LINE = 1000  # characters: a description has 64

SWITCH, ADAPTER, ROUTER = "switch", "adapter", "router"
_KINDS = {"S": SWITCH, "H": ADAPTER, "R": ROUTER, "SW": SWITCH, "CA": ADAPTER, "RT": ROUTER}

_HEAD = re.compile(r'(?:Switch|Ca|Rt)\s+\d+\s+"(?P<kind>[SHR])-(?P<guid>[0-9a-fA-F]{1,16})"(?:\s*#\s*(?P<rest>.*))?')
_PORT = re.compile(
    r'\[(?P<port>\d{1,4})\](?:\([0-9a-fA-F]+\))?\s+"(?P<kind>[SHR])-(?P<guid>[0-9a-fA-F]{1,16})"'
    r"\[(?P<peer>\d{1,4})\](?:\([0-9a-fA-F]+\))?(?:\s*#\s*(?P<rest>.*))?"
)
_ROW = re.compile(
    r"(?P<kind>CA|SW|RT)\s+\d+\s+(?P<port>\d{1,4})\s+0x(?P<guid>[0-9a-fA-F]{1,16})\s+(?P<width>\d{1,2})x\s+(?P<speed>\S+)"
    r"(?P<rest>.*)"
)
_ROW_PEER = re.compile(
    r"\s+-\s+(?P<kind>CA|SW|RT)\s+\d+\s+(?P<port>\d{1,4})\s+0x(?P<guid>[0-9a-fA-F]{1,16})\s+\(\s*'(?P<name>.*)'\s+-\s+'(?P<peer>.*)'\s*\)\s*"
)
_QUOTED = re.compile(r'"(.*)"')
_RATE = re.compile(r"\b(\d{1,2})x([A-Z][A-Z0-9]{2,5})\b[^\"]*$")
_SYSTEM = re.compile(r"sysimgguid=0x([0-9a-fA-F]{1,16})")
_AGGREGATION = "Aggregation Node"
_NAMED = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]*)(?:[ ]+(?P<device>HCA-\d+|[A-Za-z]\w*\d))?")
_ANYBODY = re.compile(r"localhost(?:\..*)?|MT\d+|ConnectX.*", re.IGNORECASE)  # names that are no host's own
_MELLANOX = re.compile(r"MF\d+;(?P<name>[^:;]+):[^/]*/(?P<unit>\S+)")
_UNFIT = re.compile(r"[\s,\[\]]+|[^ -~]+")  # signs that no list of hosts can hold


@dataclass
class End:
    """A switch, an adapter or a router, and where the listing has it."""

    guid: str
    kind: str
    line: int
    description: str = ""
    system: str = ""  # the guid of the board or box


@dataclass
class Listing:
    """What is printed: ends by guid, and each cable once, by the two ports that it joins."""

    ends: dict[str, End] = field(default_factory=dict)
    links: dict[tuple[tuple[str, int], tuple[str, int]], tuple[float | None, int, int]] = field(default_factory=dict)
    peers: dict[tuple[str, int], tuple[tuple[str, int], int]] = field(default_factory=dict)  # and the line


def recognise(text: str) -> float:
    """Return 1 for lines of a port or a device in one of the two styles."""
    return 1.0 if re.search(rf"^(?:{_HEAD.pattern}|CA +\d.* 0x\w+|SW +\d.* 0x\w+)", text, re.MULTILINE) else 0.0


def read(text: str, source: str) -> Reading:
    """Return the hosts, and the switches above them as a tree."""
    listing = parse(text, source)
    findings: list[Finding] = []
    switches = {end.guid: end for end in listing.ends.values() if end.kind == SWITCH}
    names = _switch_names(switches.values())
    summing = {
        peer for (own, _), ((peer, _), _) in listing.peers.items() if _AGGREGATION in listing.ends[own].description
    }
    hosts = _hosts(listing, names, source, findings)
    if not hosts:
        last = max(end.line for end in listing.ends.values())
        text = f"{len(switches)} switches, {len(listing.ends) - len(switches)} other devices and no host on a switch"
        remedy = "the listing may be cut off after this line: run ibnetdiscover again"
        raise TopologyError(source, last, f"{text}; {remedy}")
    cables = []
    for ((a, _), (b, _)), (rate, _, _) in listing.links.items():
        if a in switches and b in switches:
            cables.append(Cable(names[a], names[b], rate))
    found = [
        FoundSwitch(name, switches[guid].line, guid in summing)
        for guid, name in sorted(names.items(), key=lambda one: switches[one[0]].line)
    ]
    cluster, drawn = draw(source, found, hosts, cables)
    return Reading((cluster,), (*drawn, *findings, *_doubts(listing, source)))


def parse(text: str, source: str) -> Listing:
    """Return what is printed; raise TopologyError where lines contradict one another."""
    listing = Listing()
    here: End | None = None
    system = ""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] == "#":
            continue
        if len(line) > LONGEST_LINE:
            raise TopologyError(source, number, f"a line has at most {LONGEST_LINE} characters, not {len(line):,}")
        if found := _PORT.match(line):
            if here is None:
                raise TopologyError(source, number, "a port belongs to a device, whose line is not above it")
            rest = found["rest"] or ""
            name = _QUOTED.search(rest)
            peer = _end(listing, found["kind"], found["guid"], number, name[1] if name else "")
            rate = _RATE.search(rest)
            gbps = _gbps(rate[1], rate[2]) if rate else None
            _join(listing, (here.guid, int(found["port"])), (peer.guid, int(found["peer"])), gbps, number, source)
        elif found := _HEAD.match(line):
            name = _QUOTED.search(found["rest"] or "")
            here = _end(listing, found["kind"], found["guid"], number, name[1] if name else "")
            here.line, here.system, system = number, system, ""
        elif found := _ROW.match(line):
            row = _ROW_PEER.fullmatch(found["rest"])
            own = row["name"] if row else found["rest"].strip().strip("'")
            end = _end(listing, found["kind"], found["guid"], number, own)
            if row:
                peer = _end(listing, row["kind"], row["guid"], number, row["peer"])
                gbps = _gbps(found["width"], found["speed"])
                _join(listing, (end.guid, int(found["port"])), (peer.guid, int(row["port"])), gbps, number, source)
        elif found := _SYSTEM.match(line):
            system = found[1]
    return listing


def _end(listing: Listing, kind: str, guid: str, line: int, description: str) -> End:
    guid = guid.lower().rjust(16, "0")
    end = listing.ends.setdefault(guid, End(guid, _KINDS[kind], line, description))
    end.description = end.description or description
    return end


def _gbps(width: str, speed: str) -> float | None:
    lane = LANE.get(speed)
    return None if lane is None else int(width) * lane


def _join(listing: Listing, a: tuple[str, int], b: tuple[str, int], gbps: float | None, line: int, source: str) -> None:
    """Note a cable as it is seen from `a`; from `b` it is seen by a line of its own."""
    for one, other in ((a, b), (b, a)):
        before, where = listing.peers.setdefault(one, (other, line))
        if before != other:
            text = f"port {one[1]} of {one[0]} has another cable already, in line {where}"
            raise TopologyError(source, line, f"{text}; keep the listing of one fabric and one time")
    key = (min(a, b), max(a, b))
    rate, seen, first = listing.links.get(key, (gbps, 0, line))
    # The two ends of a cable have one rate: where they were read at different times the lower is sure.
    known = [one for one in (rate, gbps) if one is not None]
    listing.links[key] = (min(known) if known else None, seen + 1, first)


def _switch_names(switches: Iterable[End]) -> dict[str, str]:
    """Return a name for each switch: its description, of Mellanox' own the host name in it; the guid where none is."""
    ends = list(switches)
    short = {}
    for end in ends:
        of_mellanox = _MELLANOX.fullmatch(end.description)
        short[end.guid] = _UNFIT.sub("_", of_mellanox["name"] if of_mellanox else end.description).strip("_")
    often = Counter(short.values())
    names: dict[str, str] = {}
    for end in ends:
        name = short[end.guid]
        if often[name] > 1 and (of_mellanox := _MELLANOX.fullmatch(end.description)):  # chips of one large switch
            name = f"{name}/{_UNFIT.sub('_', of_mellanox['unit'])}"
        names[end.guid] = name or "switch"
    often = Counter(names.values())
    return {guid: f"{name}-{guid}" if often[name] > 1 or name == "switch" else name for guid, name in names.items()}


def _hosts(
    listing: Listing, names: dict[str, str], source: str, findings: list[Finding]
) -> dict[str, tuple[int, Sequence[Adapter]]]:
    """Return the hosts by their names: adapters of one name are one host's, unless two of them are one device."""
    ports: dict[str, list[Adapter]] = defaultdict(list)
    several: set[str] = set()
    for (one, other), (rate, _, _) in listing.links.items():
        for (guid, port), (peer, _) in ((one, other), (other, one)):
            if listing.ends[guid].kind == ADAPTER and peer in names:
                if guid in ports:
                    several.add(guid)
                ports[guid].append(Adapter(str(port), names[peer], rate))
    hosts: dict[str, list[tuple[End, str]]] = defaultdict(list)
    unnamed: list[End] = []
    for guid, end in listing.ends.items():
        if guid not in ports or _AGGREGATION in end.description:
            continue
        named = _NAMED.fullmatch(end.description.strip())
        if named and not _ANYBODY.fullmatch(named["host"]):
            hosts[named["host"]].append((end, named["device"] or "hca"))
        else:
            unnamed.append(end)
    for name, ends in list(hosts.items()):
        devices = Counter(device for _, device in ends)
        if max(devices.values()) > 1:
            unnamed += [end for end, _ in hosts.pop(name)]
    for system, ends_of in _by_system(unnamed).items():
        name = _free_name(f"host-{system}", hosts)
        hosts[name] = [(end, f"hca{place}") for place, end in enumerate(sorted(ends_of, key=lambda one: one.guid))]
    if unnamed:
        value = f"{len(unnamed)} adapters have no host's own name, such as {unnamed[0].description[:60]!r}"
        remedy = "each board is taken for a host, by its guid: set node_desc on the hosts, so that they are told apart"
        findings.append(finding("unnamed adapter", DOUBT, source, [end.line for end in unnamed], value, remedy))
    _say_fewer(hosts, source, findings)
    made: dict[str, tuple[int, Sequence[Adapter]]] = {}
    for name, members in hosts.items():
        adapters = [
            Adapter(f"{device}/{port.device}" if end.guid in several else device, port.switch, port.gbps)
            for end, device in members
            for port in ports[end.guid]
        ]
        made[name] = (min(end.line for end, _ in members), adapters)
    return made


def _by_system(ends: Iterable[End]) -> dict[str, list[End]]:
    """Return adapters by their board, which is surely in one host."""
    found: dict[str, list[End]] = defaultdict(list)
    for end in ends:
        found[end.system.rjust(16, "0") if end.system.strip("0") else end.guid].append(end)
    return found


def _free_name(name: str, taken: dict[str, list[tuple[End, str]]]) -> str:
    while name in taken:
        name += "_"
    return name


def _say_fewer(hosts: dict[str, list[tuple[End, str]]], source: str, findings: list[Finding]) -> None:
    """Say which hosts lack devices that most hosts with such devices have: ports that are down, or have no name."""
    sets = Counter(frozenset(device for _, device in members) for members in hosts.values())
    fewer = [
        members[0][0].line
        for members in hosts.values()
        if any(
            frozenset(device for _, device in members) < other and count > sum(sets.values()) // 4
            for other, count in sets.most_common(4)
        )
    ]
    if fewer:
        value = f"{len(fewer)} hosts have fewer adapters than most that have the same"
        remedy = "their rails are counted without the missing ones: look for ports that are down or have no name"
        findings.append(finding("fewer adapters", DOUBT, source, fewer, value, remedy))


def _doubts(listing: Listing, source: str) -> list[Finding]:
    found = []
    if once := [line for _, seen, line in listing.links.values() if seen == 1]:
        value = f"{len(once)} cables are listed from one of their ends alone"
        remedy = "a part of the listing is missing: run ibnetdiscover again"
        found.append(finding("cable seen once", DOUBT, source, once, value, remedy))
    if unknown := [line for rate, _, line in listing.links.values() if rate is None]:
        value, remedy = (
            f"{len(unknown)} cables have no rate that is known",
            "uplinks with such a cable have no bandwidth",
        )
        found.append(finding("unknown rate", DOUBT, source, unknown, value, remedy))
    if slow := _slow(listing):
        value = f"{len(slow)} cables are slower than most between such devices"
        found.append(
            finding("slow cable", DOUBT, source, slow, value, "look for a bad cable: it trained at a lower rate")
        )
    if routers := [end.line for end in listing.ends.values() if end.kind == ROUTER]:
        value = f"{len(routers)} routers lead to other subnets, which are not in the listing"
        found.append(finding("router", NOTE, source, routers, value, "they are left out"))
    return found


def _slow(listing: Listing) -> list[int]:
    """Return the lines of cables below the rate that most cables have, of those between switches, and to hosts."""
    rates: dict[bool, Counter[float]] = {True: Counter(), False: Counter()}
    lines = []
    for ((a, _), (b, _)), (rate, _, line) in listing.links.items():
        inner = listing.ends[a].kind == listing.ends[b].kind == SWITCH
        if rate is not None and not any(_AGGREGATION in listing.ends[one].description for one in (a, b)):
            rates[inner][rate] += 1
            lines.append((inner, rate, line))
    usual = {inner: count.most_common(1)[0] for inner, count in rates.items() if count}
    return [
        line for inner, rate, line in lines if rate < usual[inner][0] and 2 * usual[inner][1] > rates[inner].total()
    ]
