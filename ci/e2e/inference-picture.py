"""Draws the GPU time of both vGPUs: `inference-picture.py TIMELINE FRAMES HANG-BEGIN HANG-END MOVE-BEGIN MOVE-END >picture.svg`.

TIMELINE   lines `DAEMON ANSWER` of `campanile ctl --json timeline`, taken while the machines were at work
FRAMES     lines `TIME round NUMBER DIGEST` of the upscaler, microseconds since 1970; so are the four times, 0 for none
"""

import json
import sys
import time

timeline, frames, *moments = sys.argv[1:]
hang_begin, hang_end, move_begin, move_end = (int(moment) * 1000 for moment in moments)
# Engines tell the time by the clock that begins as the host boots.
since_1970 = time.time_ns() - time.monotonic_ns()

stretches = {}  # (vGPU, daemon): {begin: end}, nanoseconds since 1970
with open(timeline) as lines:
    for line in lines:
        daemon, _, answer = line.partition(" ")
        if not answer.strip():
            continue
        for vgpu in json.loads(answer)["vgpus"]:
            known = stretches.setdefault((vgpu["name"], daemon), {})
            for engine in vgpu["engines"]:
                if engine["node"] != "compute":
                    continue
                for context in engine["contexts"]:
                    for stretch in context["stretches"]:
                        begin = stretch["begin_ns"] + since_1970
                        end = stretch["end_ns"] or begin
                        known[begin] = max(known.get(begin, 0), end + since_1970 if stretch["end_ns"] else begin)

rounds = []
with open(frames) as lines:
    for line in lines:
        words = line.split()
        if len(words) > 2 and words[1] == "round":
            rounds.append(int(words[0]) * 1000)

all_begins = [begin for known in stretches.values() for begin in known] + rounds
if not all_begins:
    sys.exit("inference-picture: nobody had the GPU")
first, last = min(all_begins), max([*(end for known in stretches.values() for end in known.values()), *rounds])

LEFT, WIDTH, ROW = 130, 840, 60


def x(moment):
    return LEFT + (moment - first) * WIDTH / max(last - first, 1)


def busy(known):
    """The part of each column's time that was spent on the engine."""
    column = max(last - first, 1) / WIDTH
    parts = [0.0] * WIDTH
    for begin, end in known.items():
        index = int((begin - first) / column)
        while index < WIDTH and first + index * column < end:
            within = min(end, first + (index + 1) * column) - max(begin, first + index * column)
            parts[index] += max(within, 0) / column
            index += 1
    return parts


def area(name, daemon, top, colour):
    heights = [round(top + ROW - min(part, 1) * ROW) for part in busy(stretches.get((name, daemon), {}))]
    # Where it stays as high as before and behind, a point says nothing.
    points = [
        f"{LEFT + index},{height}"
        for index, height in enumerate(heights)
        if not (0 < index < WIDTH - 1 and heights[index - 1] == height == heights[index + 1])
    ]
    return f'<polygon points="{LEFT},{top + ROW} {" ".join(points)} {LEFT + WIDTH},{top + ROW}" fill="{colour}"/>'


def band(begin, end, colour, what, anchor):
    """A time that is marked; what it is stands above, on the side of `anchor`, so that neighbours do not meet."""
    if not begin or end <= begin:
        return ""
    at = x(end) if anchor == "end" else x(begin)
    return (
        f'<rect x="{x(begin):.1f}" y="30" width="{max(x(end) - x(begin), 1):.1f}" height="190" fill="{colour}" opacity="0.2"/>'
        f'<text x="{at:.1f}" y="26" fill="{colour}" text-anchor="{anchor}">{what}</text>'
    )


print('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 260" font-family="sans-serif" font-size="12">')
print('<rect width="1000" height="260" fill="white"/>')
print(band(hang_begin, hang_end, "#c00", "hang, reset", "end"))
print(band(move_begin, move_end, "#606", "live migration", "start"))
print(area("model", "a", 40, "#06c"), area("model", "b", 40, "#e80"))
print(area("upscaler", "a", 130, "#080"))
for moment in rounds:
    print(f'<line x1="{x(moment):.1f}" y1="196" x2="{x(moment):.1f}" y2="206" stroke="#080" stroke-width="0.7"/>')
for top, lines in (
    (60, ("llama.cpp, weight 300", "at daemon a: blue,", "at daemon b: orange")),
    (150, ("ncnn, weight 100", "at daemon a", "pictures: ticks")),
):
    for number, text in enumerate(lines):
        print(f'<text x="4" y="{top + 15 * number}" font-size="11">{text}</text>')
seconds = (last - first) / 1e9
step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if seconds / step <= 20)
for second in range(0, int(seconds) + 1, step):
    print(f'<text x="{x(first + second * 1e9):.1f}" y="236" fill="#888" text-anchor="middle">{second} s</text>')
print(f'<text x="{LEFT}" y="254" fill="#888">height: the part of the time in which the GPU worked for it</text>')
print("</svg>")
