# SPDX-License-Identifier: Apache-2.0
"""Strict parsers of the tables that nccl-tests and OSU micro-benchmarks print. They were written
from a description of those tables, not from our printer: a line, width, word or number that the
description does not have is a ValueError. What they return is what stands in the text."""

import re

NCCL_HEAD = [
    "#                                                              out-of-place                       in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong ",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         ",
]
NCCL_CALL = [("size", 12), ("count", 12), ("type", 8), ("redop", 6), ("root", 6)]
NCCL_TIMES = [("time", 7), ("algbw", 6), ("busbw", 6), ("wrong", 6)]
NCCL_WIDTHS = [width for _, width in NCCL_CALL + NCCL_TIMES + NCCL_TIMES]
NCCL_TYPES = {"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2,
              "float": 4, "double": 8, "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1}
NCCL_OPS = {"sum", "prod", "max", "min", "avg", "mulsum", "none"}
NCCL_TESTS = {"all_reduce", "all_gather", "reduce_scatter", "alltoall", "alltoallv", "broadcast",
              "reduce", "gather", "scatter", "sendrecv", "hypercube"}
NCCL_RANK = re.compile(r"#  Rank ([ \d]\d|\d{3,}) Group ([ \d]\d|\d{3,}) "
                       r"Pid ([ \d]{5}\d|\d{7,}) on "
                       r"(?=.{10} device|\S{11,} device) *(\S+) device ([ \d]\d|\d{3,}) "
                       r"\[([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\] (\S(?:.*\S)?)")

OSU_TITLES = {"Allreduce", "Allgather", "Reduce_scatter", "Reduce_scatter_block",
              "All-to-All Personalized Exchange", "Broadcast", "Reduce", "Gather", "Scatter",
              "All-to-Allv Personalized Exchange", "Barrier"}
OSU_TITLE = re.compile(r"# OSU MPI (\S.*) Latency Test v(\d+\.\d+)( format, by collbench \S+)?")
OSU_SIZELESS = {"Barrier"} # neither size nor type, and never validated
OSU_COLUMNS = [("# Size", 10), ("Avg Latency(us)", 18), ("Min Latency(us)", 18),
               ("Max Latency(us)", 18), ("Iterations", 12), ("Validation", 18)]
OSU_SIZELESS_COLUMNS = [("# Avg Latency(us)", 17), *OSU_COLUMNS[2:5]]


def need(condition, why, line):
    if not condition:
        raise ValueError(f"{why}: {line!r}")


class Lines:
    """The lines of a text, taken one by one; a text without a newline at its end is cut off."""

    def __init__(self, text):
        need(text.endswith("\n"), "the text is cut off", text[-80:])
        self.lines = text[:-1].split("\n")
        self.at = 0

    def peek(self):
        return self.lines[self.at] if self.at < len(self.lines) else None

    def take(self, pattern, why):
        """The next line, which matches all of the pattern."""
        line = self.peek()
        match = re.fullmatch(pattern, line) if line is not None else None
        need(match, why, line)
        self.at += 1
        return match

    def exact(self, text):
        return self.take(re.escape(text), f"expected {text!r}")


def whole(text, line):
    need(re.fullmatch(r"0|[1-9]\d*", text), f"{text!r} is no whole number", line)
    return int(text)


def fields(line, widths, gap):
    """Cells that are right-aligned in their widths."""
    need(len(line) == sum(widths) + gap * (len(widths) - 1), "wrong length of a row", line)
    cells, at = [], 0
    for i, width in enumerate(widths):
        if i:
            need(line[at:at + gap] == " " * gap, "a column is too wide", line)
            at += gap
        cell = line[at:at + width]
        need(re.fullmatch(r" *\S+", cell), f"column {i + 1} is no right-aligned word", line)
        cells.append(cell.strip())
        at += width
    return cells


def nccl_number(text, width, line):
    """As many decimals, at most two, as fit the width; a power of ten if not even none do."""
    if re.fullmatch(r"\d\.\de\+\d\d|\de\+\d\d", text):
        value = float(text)
        need(value >= 10 ** width, f"{text!r} fits without a power of ten", line)
        return value
    match = re.fullmatch(r"(?:0|[1-9]\d*)(?:\.(\d{1,2}))?", text)
    need(match, f"{text!r} is no number", line)
    decimals = len(match.group(1) or "")
    more = len(text) + (2 if decimals == 0 else 1)
    need(decimals == 2 or more > width, f"{text!r} has too few decimals", line)
    return float(text)


def nccl_times(cells, line):
    """One placement: a dict, or None when it was not run."""
    if cells[0] == "N/A":
        need(cells == ["N/A"] * 4, "part of a placement is N/A", line)
        return None
    times = {key: nccl_number(cell, width, line)
             for cell, (key, width) in zip(cells[:3], NCCL_TIMES)}
    times["wrong"] = None if cells[3] == "N/A" else whole(cells[3], line)
    return times


def nccl_row(line):
    cells = fields(line, NCCL_WIDTHS, 2)
    row = {"size": whole(cells[0], line), "count": whole(cells[1], line), "type": cells[2],
           "redop": cells[3], "root": int(cells[4]), "out_of_place": nccl_times(cells[5:9], line),
           "in_place": nccl_times(cells[9:13], line)}
    need(row["type"] in NCCL_TYPES, "unknown type", line)
    need(row["redop"] in NCCL_OPS, "unknown operator", line)
    need(re.fullmatch(r"-1|0|[1-9]\d*", cells[4]), "the root is no rank and not -1", line)
    need(row["out_of_place"] or row["in_place"], "neither placement was run", line)
    return row


def nccl_devices(lines):
    devices = []
    while (lines.peek() or "").startswith("#  Rank"):
        match = lines.take(NCCL_RANK, "no line of a rank")
        rank, group, pid, host, device, address, name = match.groups()
        need(int(rank) == len(devices), "ranks are not in order", match.string)
        devices.append({"rank": int(rank), "group": int(group), "pid": int(pid), "host": host,
                        "device": int(device), "address": address, "name": name})
    need(devices, "no rank is listed", lines.peek())
    return devices


def parse_nccl(text):
    """A dict: test, min, max, step, step_kind, warmup, iters, agg, validation, devices, rows,
    wrong, okay, busbw. `rows` as nccl_row. A text without its footer (a run that failed) is
    refused."""
    lines = Lines(text)
    lines.take(r"# (?:nccl-tests|collbench) version \d+\.\d+\.\d+(?: .*\S)?", "no version")
    test = lines.take(r"# Collective test starting: (\w+)_perf", "no name of a test").group(1)
    need(test in NCCL_TESTS, "unknown test", test)
    match = lines.take(r"# nThread (\d+) nGpus (\d+) minBytes (\d+) maxBytes (\d+) "
                       r"step: (\d+)\((factor|bytes)\) warmup iters: (\d+) iters: (\d+) "
                       r"agg iters: (\d+) validation: (\d+) graph: (\d+)(?: unalign: \d+)?",
                       "no line of parameters")
    keys = ["threads", "gpus", "min", "max", "step", "step_kind", "warmup", "iters", "agg",
            "validation", "graph"]
    table = {key: value if key == "step_kind" else int(value)
             for key, value in zip(keys, match.groups())}
    lines.exact("#")
    lines.exact("# Using devices")
    table.update(test=test, devices=nccl_devices(lines), rows=[])
    lines.exact("#")
    for head in NCCL_HEAD:
        lines.exact(head)
    while lines.peek() is not None and not lines.peek().startswith("#"):
        table["rows"].append(nccl_row(lines.peek()))
        lines.at += 1
    match = lines.take(r"# Out of bounds values : (\d+) (OK|FAILED)", "no count of wrong values")
    table.update(wrong=int(match.group(1)), okay=match.group(2) == "OK")
    need(table["okay"] == (table["wrong"] == 0), "the verdict is not that of the count",
         match.string)
    match = lines.take(r"# Avg bus bandwidth    : (\d+(?:\.\d+)?(?:e[-+]\d\d)?) ?",
                       "no mean bandwidth")
    table["busbw"] = float(match.group(1))
    lines.exact("#")
    lines.exact(f"# Collective test concluded: {test}_perf")
    lines.exact("#")
    need(lines.peek() is None, "a line behind the end", lines.peek())
    return table


def osu_row(line, columns):
    """The first column, if it is the size, is left-aligned and may be longer than its width."""
    row, rest = {}, line
    if columns[0] == OSU_COLUMNS[0]:
        size = line.split(" ")[0]
        first = max(len(size), columns[0][1])
        need(line[:first] == size.ljust(first), "the size is not left-aligned", line)
        row["size"] = whole(size, line)
        rest, columns = line[first:], columns[1:]
    cells = fields(rest, [width for _, width in columns], 0)
    row["iterations"] = whole(cells[3], line)
    for key, cell in zip(["avg", "min", "max"], cells):
        need(re.fullmatch(r"(?:0|[1-9]\d*)\.\d\d", cell), f"{cell!r} has not two decimals", line)
        row[key] = float(cell)
    if len(cells) > 4:
        need(cells[4] in ("Pass", "Fail"), "validation is neither Pass nor Fail", line)
        row["valid"] = cells[4] == "Pass"
    need(row["min"] <= row["avg"] <= row["max"], "the average is not between the others", line)
    return row


def parse_osu(text):
    """A dict: test, version, datatype, validated, rows of {size, avg, min, max, iterations} in
    microseconds, with validation also {valid}. Of a barrier there is no datatype (None) and no
    size."""
    lines = Lines(text)
    lines.exact("")
    match = lines.take(OSU_TITLE, "no title")
    table = {"test": match.group(1), "version": match.group(2), "datatype": None, "rows": []}
    need(table["test"] in OSU_TITLES, "unknown test", match.string)
    columns = OSU_SIZELESS_COLUMNS
    if table["test"] not in OSU_SIZELESS:
        table["datatype"] = lines.take(r"# Datatype: (\w+)\.", "no datatype").group(1)
        validated = (lines.peek() or "").endswith(OSU_COLUMNS[-1][0])
        columns = OSU_COLUMNS if validated else OSU_COLUMNS[:-1]
    table["validated"] = columns is OSU_COLUMNS
    lines.exact("".join(name.rjust(width) if i else name.ljust(width)
                        for i, (name, width) in enumerate(columns)))
    while lines.peek() is not None:
        table["rows"].append(osu_row(lines.peek(), columns))
        lines.at += 1
    return table
