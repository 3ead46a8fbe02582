# Draws a migration: `awk -f migration-picture.awk SAMPLES FRAMES >picture.svg`.
#
# SAMPLES   TIME STATUS PASS REMAINING-BYTES   what QEMU said while it moved the VM; microseconds of the host's clock
# FRAMES    TIME frame NUMBER                  when each frame was right, on the same clock
FNR == NR {
    at[++samples] = $1; status[samples] = $2; pass[samples] = $3; left[samples] = $4
    if ($4 > most) most = $4
    next
}
$2 == "frame" { frame[++frames] = $1 }
function x(time) { return 60 + (time - first) * 720 / (last - first) }
function y(bytes) { return 190 - bytes * 150 / most }
END {
    if (samples < 2 || most == 0) { print "no samples" > "/dev/stderr"; exit 1 }
    # Half a second before and behind.
    first = at[1] - 500000; last = at[samples] + 1500000
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 300\" font-family=\"sans-serif\" font-size=\"12\">"
    print "<rect width=\"800\" height=\"300\" fill=\"white\"/>"
    printf "<text x=\"60\" y=\"20\">Guest RAM that is left to move (%d MiB at the most), by pass</text>\n", most / 1048576
    line = ""
    for (i = 1; i <= samples; i++) {
        line = line sprintf("%.1f,%.1f ", x(at[i]), y(left[i]))
        if (pass[i] != pass[i - 1] && pass[i] > 0) {
            passes++
            printf "<line x1=\"%.1f\" y1=\"30\" x2=\"%.1f\" y2=\"190\" stroke=\"#ccc\"/>", x(at[i]), x(at[i])
            if (passes <= 12) printf "<text x=\"%.1f\" y=\"42\" fill=\"#888\">%d</text>\n", x(at[i]) + 2, pass[i]
        }
    }
    printf "<polyline points=\"%s\" fill=\"none\" stroke=\"#06c\" stroke-width=\"2\"/>\n", line
    print "<text x=\"60\" y=\"222\">Frames, each checked by the guest</text>"
    for (i = 1; i <= frames; i++) {
        if (frame[i] < first || frame[i] > last) continue
        printf "<line x1=\"%.1f\" y1=\"230\" x2=\"%.1f\" y2=\"260\" stroke=\"#080\" stroke-width=\"0.7\"/>\n", x(frame[i]), x(frame[i])
        if (i > 1 && frame[i - 1] >= first && frame[i] - frame[i - 1] > gap) { gap = frame[i] - frame[i - 1]; from = frame[i - 1]; to = frame[i] }
    }
    printf "<rect x=\"%.1f\" y=\"228\" width=\"%.1f\" height=\"34\" fill=\"#c00\" opacity=\"0.25\"/>\n", x(from), x(to) - x(from)
    printf "<text x=\"%.1f\" y=\"278\" fill=\"#c00\" text-anchor=\"end\">longest time from frame to frame: %d ms</text>\n", x(to), gap / 1000
    for (t = 0; t * 1000000 <= last - first; t++)
        printf "<text x=\"%.1f\" y=\"296\" fill=\"#888\" text-anchor=\"middle\">%d s</text>\n", x(first + t * 1000000), t
    print "</svg>"
}
