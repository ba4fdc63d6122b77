// What the page was given, unpacked once: columns of numbers, and texts by number.
const COMPUTE = 0, COMMUNICATION = 1, COPY = 2, WAIT = 3;

function readData() {
  const data = JSON.parse(document.getElementById("data").textContent);
  const text = number => (number < 0 ? "" : data.strings[number]);
  for (const view of data.views) {
    view.end = 1e-9;
    view.byOrigin = new Map(view.collectives.map(row => [row.origin, row]));
    for (const run of view.runs) {
      Object.assign(run, unpackRun(run, text));
      view.end = Math.max(view.end, run.end);
    }
    view.peak = Math.max(1, ...view.runs.map(run => run.peak_bytes || 0));
  }
  return data;
}

function unpackRun(run, text) {
  const columns = run.spans, lanes = run.lanes.map(name => ({ name, spans: [], run }));
  for (let i = 0; i < columns.start.length; i++) {
    lanes[columns.lane[i]].spans.push({
      run, lane: columns.lane[i], sort: columns.sort[i], start: columns.start[i], end: columns.end[i],
      exposed: columns.exposed[i], bytes: columns.bytes[i], name: text(columns.name[i]), kind: text(columns.kind[i]),
      source: text(columns.source[i]), module: text(columns.module[i]), origins: columns.origins[i].map(text), match: false,
    });
  }
  let end = run.step_us;
  for (const lane of lanes) {
    lane.spans.sort((one, other) => one.start - other.start);
    let furthest = 0;
    // Spans of one lane should not overlap; where they do, the running maximum keeps the search for the first right.
    for (const span of lane.spans) span.reach = furthest = Math.max(furthest, span.end);
    end = Math.max(end, furthest);
  }
  return { lanes, end };
}

// Index of the first span of a lane that reaches beyond a time.
function firstAfter(spans, time) {
  let low = 0, high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].reach <= time) low = middle + 1; else high = middle;
  }
  return low;
}

function spanText(span, view) {
  const rows = span.origins.map(origin => view.byOrigin.get(origin)).filter(Boolean);
  return [span.name, span.kind, span.module, span.source, ...span.origins, ...rows.map(rowText)].join("\n").toLowerCase();
}

function rowText(row) {
  return [row.origin, row.verdict, row.why, row.module, row.source, row.group].join("\n");
}

// Marks the spans that hold every word of the query; answers them by time, the last run first: that is what was made.
function search(view, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const run of [...view.runs].reverse())
    for (const lane of run.lanes)
      for (const span of lane.spans) {
        if (words.length && span.text === undefined) span.text = spanText(span, view);
        span.match = words.length > 0 && words.every(word => span.text.includes(word));
        if (span.match) found.push(span);
      }
  const rank = span => -view.runs.indexOf(span.run);
  return found.sort((one, other) => rank(one) - rank(other) || one.start - other.start);
}

function timeText(us) {
  const size = Math.abs(us);
  if (size >= 1e6) return `${digits(us / 1e6)} s`;
  if (size >= 1e3) return `${digits(us / 1e3)} ms`;
  return `${digits(us)} µs`;
}

// Four digits, without zeros that say nothing.
const digits = value => String(Number(value.toPrecision(4)));

function bytesText(bytes) {
  if (bytes === null || bytes === undefined || bytes < 0) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) { bytes /= 1024; unit++; }
  return `${bytes >= 100 || unit === 0 ? bytes.toFixed(0) : bytes.toFixed(1)} ${units[unit]}`;
}
