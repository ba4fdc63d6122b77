// Drawing on canvases. Nothing here changes what is shown; `scene` holds the window of time and what is marked.
const SMALL = 1.5; // pixels
const LANE = 22, GAP = 4, SECTION = 26, AXIS = 26, MEMORY = 92, FONT = '12px system-ui, sans-serif';

function layOut(view, width) {
  const rows = [];
  let top = AXIS;
  for (const run of view.runs) {
    rows.push({ sort: "section", run, top, height: SECTION });
    top += SECTION;
    for (const lane of run.lanes) {
      rows.push({ sort: "lane", run, lane, top, height: LANE });
      top += LANE + GAP;
    }
    top += 4;
  }
  if (view.runs.some(run => run.memory.at.length)) {
    rows.push({ sort: "memory", top: top + 8, height: MEMORY });
    top += MEMORY + 14;
  }
  return { rows, height: top + 4, left: width < 560 ? 84 : 136, width };
}

function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function drawTimeline(canvas, scene) {
  const { plan, colours } = scene;
  const context = prepare(canvas, plan.width, plan.height);
  context.fillStyle = colours.ground;
  context.fillRect(0, 0, plan.width, plan.height);
  context.font = FONT;
  context.textBaseline = "middle";
  drawAxis(context, scene);
  for (const row of plan.rows) {
    if (row.sort === "section") drawSection(context, scene, row);
    else if (row.sort === "lane") drawLane(context, scene, row);
    else drawMemory(context, scene, row);
  }
  drawBounds(context, scene);
}

const toX = (scene, time) => scene.plan.left + (time - scene.from) * (scene.plan.width - scene.plan.left) / (scene.to - scene.from);

function ticks(from, to, room) {
  const raw = (to - from) / Math.max(2, room / 95), base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(times => times * base).find(candidate => candidate >= raw);
  const found = [];
  for (let i = Math.ceil(from / step); i * step <= to; i++) found.push(i * step);
  return found;
}

function drawAxis(context, scene) {
  const { plan, colours } = scene;
  context.textAlign = "center";
  for (const time of ticks(scene.from, scene.to, plan.width - plan.left)) {
    const x = Math.round(toX(scene, time)) + 0.5;
    context.strokeStyle = colours.line;
    context.beginPath(); context.moveTo(x, AXIS - 6); context.lineTo(x, plan.height); context.stroke();
    context.fillStyle = colours.quiet;
    if (x > plan.left + 24 && x < plan.width - 24) context.fillText(timeText(time), x, AXIS / 2 - 1);
  }
  context.textAlign = "left";
}

function drawSection(context, scene, row) {
  const { colours, plan } = scene, run = row.run;
  context.fillStyle = colours.ground;
  context.fillRect(0, row.top + 1, plan.width, row.height - 2);
  context.fillStyle = colours.ink;
  context.font = `600 13px system-ui, sans-serif`;
  context.fillText(run.label, 0, row.top + row.height / 2 + 2);
  const from = context.measureText(run.label).width + 12;
  context.font = FONT;
  context.fillStyle = colours.quiet;
  const said = `step ${timeText(run.step_us)} · exposed ${timeText(run.exposed_us)} · compute ${timeText(run.compute_us)}`;
  context.fillText(said + (run.peak_bytes ? ` · peak ${bytesText(run.peak_bytes)}` : ""), from, row.top + row.height / 2 + 2);
}

function colourOf(span, colours) {
  if (span.sort === WAIT) return ["exposed", "exposed-ink"].map(name => colours[name]);
  return [["compute", "compute-ink"], ["hidden", "hidden-ink"], ["copy", "copy-ink"]][span.sort].map(name => colours[name]);
}

function drawLane(context, scene, row) {
  const { plan, colours } = scene, spans = row.lane.spans;
  context.fillStyle = colours.band;
  context.fillRect(plan.left, row.top, plan.width - plan.left, row.height);
  context.save();
  context.beginPath(); context.rect(plan.left, row.top - 3, plan.width - plan.left, row.height + 6); context.clip();
  const exposed = [], matched = [], small = [];
  for (let i = firstAfter(spans, scene.from); i < spans.length && spans[i].start < scene.to; i++) {
    const span = spans[i], x = toX(scene, span.start), right = toX(scene, span.end);
    if (span.match || span === scene.selected) matched.push(span);
    if (right - x < SMALL) { small.push(span); continue; }
    if (span.exposed > 0 && span.sort !== WAIT) exposed.push(span);
    const [fill, ink] = colourOf(span, colours);
    context.globalAlpha = scene.searching && !span.match ? 0.3 : 1;
    context.fillStyle = fill;
    const width = Math.max(1, right - x - (right - x > 4 ? 0.6 : 0));
    context.fillRect(x, row.top, width, row.height);
    if (width > 46 && !mostlyExposed(span)) drawLabel(context, span, x, right, row, ink, scene);
  }
  context.globalAlpha = scene.searching ? 0.3 : 1;
  drawShares(context, shares(small, time => toX(scene, time), plan.width), row, colours, plan.left);
  for (const span of exposed) drawExposed(context, scene, row, span);
  context.globalAlpha = 1;
  for (const span of matched) drawMarked(context, scene, row, span);
  context.restore();
  context.fillStyle = colours.quiet;
  context.fillText(shortened(context, row.lane.name, plan.left - 12), 2, row.top + row.height / 2 + 1);
}

function drawExposed(context, scene, row, span) {
  const from = toX(scene, Math.max(span.start, span.end - span.exposed)), to = toX(scene, span.end);
  const ink = scene.colours["exposed-ink"];
  context.globalAlpha = scene.searching && !span.match ? 0.4 : 1;
  context.fillStyle = scene.colours.exposed;
  const width = Math.max(1, to - from - (to - from > 4 ? 0.6 : 0));
  context.fillRect(from, row.top, width, row.height);
  if (width > 46 && mostlyExposed(span)) drawLabel(context, span, from, to, row, ink, scene);
}

// A name is written once, on the larger part.
const mostlyExposed = span => span.sort !== WAIT && span.exposed > 0.5 * (span.end - span.start);

// What is too small to be drawn one by one is added up by column of pixels: how much of its time is busy, and how much
// of that exposed. Bars of at least a pixel each would show a lane as full that is half empty.
function shares(spans, scaled, width) {
  const busy = new Float32Array(width + 1), exposed = new Float32Array(width + 1);
  const add = (into, from, to) => {
    const first = Math.max(0, Math.floor(from)), last = Math.min(width, Math.floor(to));
    for (let x = first; x <= last; x++) into[x] += Math.max(0, Math.min(to, x + 1) - Math.max(from, x));
  };
  let sort = COMMUNICATION;
  for (const span of spans) {
    const open = exposedTime(span);
    if (span.sort !== WAIT) sort = span.sort;
    if (open < span.end - span.start) add(busy, scaled(span.start), scaled(span.end - open));
    if (open > 0) add(exposed, scaled(span.end - open), scaled(span.end));
  }
  return { busy, exposed, sort };
}

const exposedTime = span => (span.sort === WAIT ? span.end - span.start : Math.min(span.exposed, span.end - span.start));

function drawShares(context, { busy, exposed, sort }, row, colours, left) {
  const fill = colourOf({ sort }, colours)[0];
  for (let x = Math.floor(left); x < busy.length; x++) {
    const open = Math.min(1, exposed[x]) * row.height, full = Math.min(1, busy[x] + exposed[x]) * row.height;
    if (full <= 0) continue;
    context.fillStyle = fill;
    context.fillRect(x, row.top + row.height - full, 1, full - open);
    context.fillStyle = colours.exposed;
    context.fillRect(x, row.top + row.height - open, 1, open);
  }
}

function drawLabel(context, span, x, right, row, ink, scene) {
  const from = Math.max(x, scene.plan.left) + 5, room = Math.min(right, scene.plan.width) - from - 5;
  if (room < 30) return;
  context.fillStyle = ink;
  context.fillText(shortened(context, span.name, room), from, row.top + row.height / 2 + 1);
}

function shortened(context, text, room) {
  if (text.length * 7.5 < room || context.measureText(text).width <= room) return text;
  let kept = Math.max(1, Math.floor(text.length * room / context.measureText(text).width) - 1);
  while (kept > 1 && context.measureText(`${text.slice(0, kept)}…`).width > room) kept--;
  return `${text.slice(0, kept)}…`;
}

function drawMarked(context, scene, row, span) {
  const x = toX(scene, span.start), width = Math.max(3, toX(scene, span.end) - x);
  context.lineWidth = 2;
  context.strokeStyle = span === scene.selected ? scene.colours.ink : scene.colours.match;
  context.strokeRect(x, row.top - 1, width, row.height + 2);
  context.lineWidth = 1;
}

function drawBounds(context, scene) {
  const { plan, colours } = scene;
  for (const row of plan.rows.filter(one => one.sort === "section")) {
    const lower = row.run.lower_us;
    if (!(lower > 0)) continue;
    const x = toX(scene, lower), lanes = plan.rows.filter(one => one.sort === "lane" && one.run === row.run);
    const bottom = lanes.length ? lanes[lanes.length - 1].top + LANE : row.top + row.height;
    if (x < plan.left || x > plan.width) continue;
    context.strokeStyle = colours.ink;
    context.setLineDash([3, 3]);
    context.beginPath(); context.moveTo(x, row.top + row.height - 4); context.lineTo(x, bottom); context.stroke();
    context.setLineDash([]);
    context.fillStyle = colours.quiet;
    const word = "no schedule is shorter", wide = context.measureText(word).width;
    const clear = context.measureText("step 000.0 ms · exposed 000.0 ms · compute 000.0 ms · peak 000.0 MiB · before").width + 30;
    const at = x + 5 + wide < plan.width ? x + 5 : x - wide - 5;
    if (at > clear) context.fillText(word, at, row.top + row.height / 2 + 2);
  }
}

function drawMemory(context, scene, row) {
  const { plan, colours, view } = scene;
  context.fillStyle = colours.band;
  context.fillRect(plan.left, row.top, plan.width - plan.left, row.height);
  context.fillStyle = colours.quiet;
  context.fillText("memory", 2, row.top + 10);
  context.fillText(bytesText(view.peak), 2, row.top + 26);
  context.save();
  context.beginPath(); context.rect(plan.left, row.top, plan.width - plan.left, row.height); context.clip();
  const runs = view.runs.filter(run => run.memory.at.length), last = runs[runs.length - 1];
  for (const run of runs) {
    const ours = run === last;
    traceMemory(context, scene, row, run);
    context.strokeStyle = ours ? colours.memory : colours["memory-before"];
    context.lineWidth = ours ? 1.8 : 1.4;
    if (!ours) context.setLineDash([5, 3]);
    context.stroke();
    context.setLineDash([]);
    if (ours) {
      context.lineTo(toX(scene, run.end), row.top + row.height); context.lineTo(toX(scene, 0), row.top + row.height);
      context.globalAlpha = 0.14; context.fillStyle = colours.memory; context.fill(); context.globalAlpha = 1;
    }
  }
  context.lineWidth = 1;
  context.restore();
  if (runs.length < 2) return;
  runs.forEach((run, number) => {
    context.fillStyle = run === last ? colours.memory : colours["memory-before"];
    context.fillText(run === last ? `— ${run.label}` : `- - ${run.label}`, 2, row.top + 46 + 16 * number);
  });
}

// A staircase, thinned to a few points for each pixel.
function traceMemory(context, scene, row, run) {
  const { at, bytes } = run.memory, height = bytesHeld => row.top + row.height - 3 - (row.height - 8) * bytesHeld / scene.view.peak;
  context.beginPath();
  // Inputs are there from the beginning, which may be told in several points.
  let level = bytes[Math.max(0, at.findLastIndex(time => time <= 0))], pixel = -1e9, high = level;
  context.moveTo(toX(scene, 0), height(level));
  for (let i = 0; i < at.length; i++) {
    if (at[i] <= 0) continue;
    const x = toX(scene, at[i]);
    if (x - pixel >= 0.7) {
      context.lineTo(x, height(high)); context.lineTo(x, height(level)); context.lineTo(x, height(bytes[i]));
      pixel = x; high = bytes[i];
    } else if (bytes[i] > high) { high = bytes[i]; context.lineTo(x, height(high)); }
    level = bytes[i];
  }
  context.lineTo(toX(scene, run.end), height(level));
}

// Everything is in it at any zoom, so it is drawn once for each size and theme and then copied.
function overviewPicture(scene, width, height) {
  const { view, colours } = scene, key = [width, window.devicePixelRatio, colours.ground].join();
  if (view.overview && view.overview.key === key) return view.overview;
  const picture = document.createElement("canvas"), context = prepare(picture, width, height);
  const scaled = time => time / view.end * width, band = (height - 4) / view.runs.length;
  context.fillStyle = colours.panel;
  context.fillRect(0, 0, width, height);
  view.runs.forEach((run, number) => {
    const spans = run.lanes.flatMap(lane => lane.spans).filter(span => span.sort === COMPUTE || span.sort === WAIT);
    drawShares(context, { ...shares(spans, scaled, width), sort: COMPUTE }, { top: 2 + band * number, height: band - 1 }, colours, 0);
  });
  picture.key = key;
  return view.overview = picture;
}

function drawOverview(canvas, scene, width) {
  const height = 34, { view, colours } = scene, context = prepare(canvas, width, height);
  const scaled = time => time / view.end * width;
  context.drawImage(overviewPicture(scene, width, height), 0, 0, width, height);
  context.fillStyle = colours.ground;
  context.globalAlpha = 0.72;
  context.fillRect(0, 0, scaled(scene.from), height);
  context.fillRect(scaled(scene.to), 0, width, height);
  context.globalAlpha = 1;
  context.strokeStyle = colours.focus;
  context.strokeRect(scaled(scene.from) + 0.5, 0.5, Math.max(3, scaled(scene.to - scene.from) - 1), height - 1);
}
