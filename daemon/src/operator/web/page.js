// Asks the daemon once a second, and draws. What comes from guests becomes text nodes and attributes, never markup.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 1000, LEFT = 230, ROW = 20, BAR = 14;
const SPAN_NS = 5e9;
const MIB = 1 << 20;

/** An element with attributes and children; strings become text nodes. */
function make(name, attributes, ...children) {
  const is_picture = ["svg", "rect", "text", "title"].includes(name);
  const element = is_picture ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function picture(height, children) {
  return make("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img" }, ...children);
}

function show(id, children) {
  document.getElementById(id).replaceChildren(...children);
}

/** A rectangle with a tip. */
function rect(x, y, width, height, kind, tip) {
  const title = tip === undefined ? [] : [make("title", {}, tip)];
  return make("rect", { x, y, width: Math.max(width, 0), height, class: kind }, ...title);
}

const label = (x, y, text) => make("text", { x, y }, text);
const mib = (bytes) => `${Math.round(bytes / MIB)} MiB`;

/** A context as `campanile ctl timeline` names it: a handle's lower 32 bits are its index. */
function title({ process, context, entry }) {
  if (process === null || context === null) return `ended, entry ${entry.join(".")}`;
  return `process ${process}, context ${context % 2 ** 32}`;
}

/** One row a context, by vGPU and node; time to the right, now at the right edge. */
function timeline(answer) {
  const rows = [];
  let newest = 0;
  for (const vgpu of answer.vgpus) {
    for (const engine of vgpu.engines) {
      const node = engine.engine > 0 ? `${engine.node}@${engine.engine}` : engine.node;
      if (engine.contexts.length === 0) rows.push({ name: `${vgpu.name} ${node}`, stretches: [] });
      for (const context of engine.contexts) {
        rows.push({ name: `${vgpu.name} ${node}, ${title(context)}`, stretches: context.stretches });
        for (const stretch of context.stretches) newest = Math.max(newest, stretch.end_ns);
      }
    }
  }
  if (rows.length === 0) return [make("p", {}, "No engine runs.")];
  const begin = newest - SPAN_NS;
  const at = (ns) => LEFT + Math.max(0, (ns - begin) / SPAN_NS) * (WIDTH - LEFT);
  const shapes = [];
  rows.forEach((row, index) => {
    const y = index * ROW;
    shapes.push(label(0, y + BAR - 2, row.name), rect(LEFT, y, WIDTH - LEFT, BAR, "row"));
    for (const { begin_ns, end_ns, band, preempted } of row.stretches) {
      const tip = `${band}, ${((end_ns - begin_ns) / 1e6).toFixed(3)} ms${preempted ? ", preempted" : ""}`;
      if (end_ns > begin) shapes.push(rect(at(begin_ns), y, Math.max(at(end_ns) - at(begin_ns), 0.5), BAR, band, tip));
    }
  });
  return [picture(rows.length * ROW, shapes)];
}

/** A row of cells for each segment, darker where more of the cell is taken. */
function cells(name, values, bytes, y) {
  const width = (WIDTH - LEFT) / Math.max(values.length, 1);
  const shapes = [label(0, y + BAR - 2, `${name}, ${mib(bytes)}`)];
  values.forEach((percent, index) => {
    const cell = rect(LEFT + index * width, y, width - 1, BAR, percent > 0 ? "normal" : "row", `${percent} %`);
    if (percent > 0) cell.setAttribute("fill-opacity", 0.25 + (0.75 * Math.min(percent, 100)) / 100);
    shapes.push(cell);
  });
  return shapes;
}

function memory(answer) {
  return answer.vgpus.flatMap((vgpu) => {
    const state = vgpu.quarantined ? `quarantined: ${vgpu.quarantined.why}` : vgpu.vm_connected ? "a VM is connected" : "no VM";
    const used = `${mib(vgpu.vram_committed_bytes)} of ${mib(vgpu.vram_max_bytes)}`;
    const head = make("h3", {}, `${vgpu.name}: ${state}, ${used}`);
    const of = vgpu.session?.memory;
    if (!of) return [head];
    const shapes = [...cells("visible", of.visible_cells, of.visible, 0), ...cells("local", of.local_cells, of.local, ROW)];
    shapes.push(label(0, 2 * ROW + BAR - 2, `evicted, ${mib(of.evicted)}; ${of.evictions} evictions, ${of.restores} restores`));
    return [head, picture(3 * ROW, shapes)];
  });
}

/** The newest first, each with its packet and the whole report. */
function hangs(answer) {
  const reports = answer.vgpus.flatMap((vgpu) => vgpu.reports).sort((a, b) => b.unix_time_ms - a.unix_time_ms || b.report - a.report);
  if (reports.length === 0) return [make("p", {}, "None.")];
  const open = new Set([...document.querySelectorAll("#hangs details[open]")].map((of) => of.dataset.report));
  return reports.map((report) => {
    const time = new Date(report.unix_time_ms).toISOString();
    const fault = report.engine?.packet_at_fault;
    const packet = fault ? `the packet at byte ${fault.byte}, kernel ${fault.kernel}` : "no packet";
    const title = `${report.report}: ${report.vgpu} ${report.node}, ${report.reason_name}, ${time}: ${report.what}; ${packet}`;
    // Numbers are by state directory, and so by worker.
    const key = `${report.vgpu} ${report.report}`;
    const details = make("details", { "data-report": key });
    details.open = open.has(key);
    details.append(make("summary", {}, title), make("pre", {}, JSON.stringify(report, null, 2)));
    return details;
  });
}

/** A bar a pass, as long as what it sent; the last one, with the VM paused, in red. */
function migration(answer) {
  const shown = answer.departures.filter((of) => of.phase !== "idle" || of.last !== null || of.progress.passes.length > 0);
  if (shown.length === 0) return [make("p", {}, "None since the daemon began.")];
  return shown.flatMap((of) => {
    const { passes, left_bytes, blackout_us, sent_bytes } = of.progress;
    const pause = blackout_us === null ? "" : `, paused for ${(blackout_us / 1000).toFixed(1)} ms`;
    const words = `${of.vgpu}: ${of.phase}, to ${of.to ?? "nowhere"}; ${mib(sent_bytes)} sent, ${mib(left_bytes)} left${pause}`;
    const longest = Math.max(1, ...passes.map((pass) => pass.wire_bytes));
    const shapes = passes.flatMap((pass, index) => {
      const y = index * ROW;
      const took = `${(pass.microseconds / 1000).toFixed(1)} ms`;
      const length = (pass.wire_bytes / longest) * (WIDTH - LEFT);
      const tip = `${pass.pages} pages, ${pass.zero_pages} of them zero, ${took}`;
      return [
        label(0, y + BAR - 2, `pass ${pass.pass}: ${mib(pass.wire_bytes)}, ${took}`),
        rect(LEFT, y, WIDTH - LEFT, BAR, "row"),
        rect(LEFT, y, length, BAR, pass.is_last ? "late" : "normal", tip),
      ];
    });
    return [make("h3", {}, words), picture(Math.max(passes.length, 1) * ROW, shapes)];
  });
}

const LOOKS = [
  ["/timeline.json", "timeline", timeline],
  ["/vgpus.json", "memory", memory],
  ["/reports.json", "hangs", hangs],
  ["/migration.json", "migration", migration],
];

async function look() {
  const state = document.getElementById("state");
  try {
    for (const [path, id, draw] of LOOKS) {
      const answer = await (await fetch(path)).json();
      show(id, answer.error ? [make("p", { class: "wrong" }, answer.error)] : draw(answer));
    }
    state.className = "";
    state.textContent = `as of ${new Date().toLocaleTimeString()}`;
  } catch (error) {
    state.className = "wrong";
    state.textContent = `the daemon does not answer: ${error.message}`;
  }
  setTimeout(look, document.hidden ? 5000 : 1000);
}

look();
